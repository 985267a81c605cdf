//! Rows that a claim reads, whatever the planner's statistics.

use std::time::Duration;

use serde_json::json;
use sojourn::{
    base::{Id, Origin, seal::MasterKey},
    domain::SessionKind,
    store::{Store, job::Claimant, outbox::Capacity, pool::PoolSizes},
};
use uuid::Uuid;

use crate::support::service::Ground;

/// Rows of sessions read so far.
const READ: &str = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables
                    where schemaname = 'public' and relname = 'session'";

fn open(ground: &Ground) -> Store {
    let master = MasterKey::parse("a passphrase that is long enough for tests").expect("a master key");
    Store::open(&ground.urls(), PoolSizes { app: 1, system: 1 }, master).expect("a store")
}

#[tokio::test]
async fn a_claim_reads_the_sessions_it_takes_and_no_others() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    api.stop().await;
    // Statistics of a day on which many organizations had a session, and one had many jobs.
    ground.sql("alter table session set (autovacuum_enabled = false)").await;
    ground.sql("alter table job set (autovacuum_enabled = false)").await;
    ground
        .sql(
            "insert into org
             select (jsonb_populate_record(t, jsonb_build_object('org_id', gen_random_uuid()))).*
             from org t, generate_series(1, 40)",
        )
        .await;
    ground
        .sql(
            "insert into session
             select (jsonb_populate_record(s, jsonb_build_object('org_id', t.org_id))).*
             from session s join org t on t.org_id <> s.org_id",
        )
        .await;
    ground.sql("analyze session").await;
    ground
        .sql(
            "insert into session
             select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
             from session s join agent using (org_id), generate_series(1, 3000)",
        )
        .await;
    let queue = "insert into job (org_id, session_id, kind, ready_at)
                 select org_id, session_id, 'turn', now() from session join agent using (org_id)";
    ground.sql(queue).await;
    ground.sql("analyze job").await;
    ground.sql("delete from job where session_id not in (select session_id from job limit 20)").await;

    let store = open(&ground);
    let uuid = || Id::<SessionKind>::uuid(Origin::system().id());
    let lease = Duration::from_secs(60);
    let claimant = Claimant { worker: uuid(), node: uuid(), lease, node_silence: lease };
    let before = ground.count(READ).await;
    let mut taken = 0;
    for _ in 0..12 {
        taken += store.claim(claimant, false, Id::from_uuid(Uuid::nil()), 2).await.expect("an answer").len();
    }
    store.close().await;
    assert_eq!(taken, 20);
    let read = ground.count(READ).await - before;
    assert!((20..400).contains(&read), "{read} rows of sessions were read for {taken} jobs");
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

    let store = open(&ground);
    let capacity = Capacity { free: 16, ..Capacity::default() };
    let before = ground.count(DELIVERIES_READ).await;
    let mut taken = 0;
    for _ in 0..20 {
        taken += store.claim_deliveries(&capacity).await.expect("an answer").len();
    }
    store.close().await;
    assert_eq!(taken, 320);
    let read = ground.count(DELIVERIES_READ).await - before;
    // Each claim reads all due deliveries, to be fair, and those that it takes once more.
    assert!((320..20 * 1_100).contains(&read), "{read} deliveries were read for {taken}");
}
