//! Claims of deliveries: what they read, and whose results are recorded.

use std::time::Duration;

use serde_json::json;
use sojourn::{
    base::Origin,
    domain::DestinationId,
    store::{
        Store,
        outbox::{Capacity, Claim, Settled, Status},
    },
};
use sqlx::Connection;
use uuid::Uuid;

use crate::support::service::Ground;

async fn claim(store: &Store, capacity: &Capacity, after: Option<DestinationId>) -> Claim {
    store.claim_deliveries(capacity, &[], after).await.expect("an answer")
}

/// A deployment whose only process has ended, and in which no delivery is due.
async fn ended() -> Ground {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let hook = json!({ "url": "https://example.com/behind" });
    api.owner().post("/webhooks", hook).await.ok();
    api.owner().post("/sessions", json!({})).await.ok();
    api.stop().await;
    ground.sql("delete from delivery").await;
    ground
}

/// Rows of deliveries read so far.
const DELIVERIES_READ: &str = "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
                            from pg_stat_user_tables where relname ~ '^delivery_(default|[0-9]+)$'";

#[tokio::test]
async fn a_claim_of_deliveries_finds_each_by_its_key() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let destinations: Vec<_> =
        (0..5).map(|at| json!({ "url": format!("https://example.com/{at}") })).collect();
    api.owner().post("/sessions", json!({ "destinations": destinations })).await.ok();
    api.stop().await;
    // Statistics of a service that has sent everything, and then sends many deliveries at once, one
    // destination after the other.
    let sent = "insert into delivery (org_id, delivery_id, session_id, destination_id, event_id, event_seq, type,
                                      status)
                select org_id, gen_random_uuid(), session_id, destination_id, gen_random_uuid(), 1, 'turn.completed',
                       'delivered'
                from destination, generate_series(1, 200)";
    let due = "update delivery v
               set status = 'pending', ready_at = now() - d.place * interval '1 minute'
               from (select destination_id, row_number() over () as place from destination) d
               where d.destination_id = v.destination_id";
    for statement in ["delete from delivery", sent, "vacuum analyze delivery", due] {
        ground.sql(statement).await;
    }

    let store = ground.store(1);
    let capacity = Capacity { free: 16, ..Capacity::default() };
    let before = ground.count(DELIVERIES_READ).await;
    let mut taken = 0;
    for _ in 0..20 {
        taken += claim(&store, &capacity, None).await.deliveries.len();
    }
    store.close().await;
    assert_eq!(taken, 320);
    let read = ground.count(DELIVERIES_READ).await - before;
    // Each claim reads all due deliveries, to be fair, and those that it takes once more.
    assert!((320..20 * 1_100).contains(&read), "{read} deliveries were read for {taken}");
}

/// Inserts deliveries, `$2` of each destination whose URL ends with `$3`, due for `$1` minutes.
const DUE: &str = "insert into delivery (org_id, delivery_id, session_id, destination_id, event_id, event_seq, type, status,
                                  ready_at)
            select d.org_id, gen_random_uuid(), s.session_id, d.destination_id, gen_random_uuid(), 1, 'turn.completed',
                   'pending', now() - $1 * interval '1 minute' + n * interval '1 microsecond'
            from destination d
            join session s using (org_id)
            cross join generate_series(1, $2) n
            where d.url like '%' || $3";

#[tokio::test]
async fn the_backlog_of_one_destination_is_not_read_to_find_those_of_others() {
    let ground = ended().await;
    // More destinations than one claim visits.
    let others = "insert into destination
                  select (jsonb_populate_record(d, jsonb_build_object(
                      'destination_id', gen_random_uuid(), 'url', 'https://example.com/other'
                  ))).*
                  from destination d, generate_series(1, 1500)";
    ground.sql(others).await;
    let mut superuser = ground.database.superuser().await;
    // Statistics of a service that has sent everything.
    sqlx::query(DUE).bind(60).bind(2_000).bind("/behind").execute(&mut superuser).await.expect("rows");
    ground.sql("update delivery set status = 'delivered', ready_at = null").await;
    ground.sql("vacuum analyze delivery").await;
    for (minutes, count, url) in [(60, 30_000, "/behind"), (1, 2, "/other")] {
        sqlx::query(DUE).bind(minutes).bind(count).bind(url).execute(&mut superuser).await.expect("rows");
    }
    let behind: Uuid = sqlx::query_scalar("select destination_id from destination where url like '%/behind'")
        .fetch_one(&mut superuser)
        .await
        .expect("a row");
    superuser.close().await.expect("a clean end");

    let store = ground.store(1);
    let capacity = Capacity { free: 4_000, full_destinations: vec![behind], ..Capacity::default() };
    let before = ground.count(DELIVERIES_READ).await;
    let (mut taken, mut claims, mut after) = (0, 0, None);
    while taken < 3_000 && claims < 200 {
        let claim = claim(&store, &capacity, after).await;
        (claims, taken, after) = (claims + 1, taken + claim.deliveries.len(), claim.next);
    }
    store.close().await;
    assert_eq!(taken, 3_000, "after {claims} claims");
    let read = ground.count(DELIVERIES_READ).await - before;
    assert!(read < claims * 4_000, "{claims} claims read {read} deliveries");
}

#[tokio::test]
async fn the_result_of_an_attempt_before_a_redelivery_is_not_that_of_the_redelivery() {
    let ground = ended().await;
    let mut superuser = ground.database.superuser().await;
    sqlx::query(DUE).bind(1).bind(1).bind("/behind").execute(&mut superuser).await.expect("a row");
    superuser.close().await.expect("a clean end");
    let store = ground.store(1);
    let capacity = Capacity { free: 4, ..Capacity::default() };
    let one = async || claim(&store, &capacity, None).await.deliveries.pop().expect("a delivery");
    let first = one().await;
    let mut tx = store.begin(first.org).await.expect("a transaction");
    tx.redeliver(first.delivery).await.expect("it is due again");
    tx.commit().await.expect("a commit");
    ground.sql("update delivery set ready_at = ready_at - interval '1 minute'").await;
    let second = one().await;
    assert_eq!((first.delivery, first.attempt), (second.delivery, second.attempt));

    let ended = |status| Settled {
        status,
        response_code: Some(200),
        error: None,
        duration: Some(Duration::from_millis(1)),
    };
    let origin = Origin::system();
    let count = async |status: &str| {
        ground.count(&format!("select count(*) from delivery where status = '{status}'")).await
    };
    store.settle_delivery(&first, &ended(Status::Delivered), &origin).await.expect("an answer");
    assert_eq!((count("delivering").await, count("delivered").await), (1, 0));
    let retry_after = Duration::from_secs(5);
    store.settle_delivery(&second, &ended(Status::Failed { retry_after }), &origin).await.expect("an answer");
    assert_eq!(count("failed").await, 1);
    store.close().await;
}
