//! Jobs that maintain sandboxes: claimed apart from turns, the first of each organization first.

use std::{collections::HashSet, time::Duration};

use sojourn::store::job::Kind;
use tokio::time::sleep;

use crate::{
    jobs::{JOBS_READ, claim_all, open, queue, waiting_orgs},
    support::service::Ground,
};

/// Adds a job of a sandbox to each session.
async fn idle_jobs(ground: &Ground, ready_at: &str) {
    let insert = format!(
        "insert into job (org_id, session_id, kind, ready_at, is_scheduled)
         select org_id, session_id, 'idle', {ready_at}, true
         from session
         on conflict (org_id, session_id, kind) do update set ready_at = excluded.ready_at"
    );
    ground.sql(&insert).await;
}

#[tokio::test]
async fn sandboxes_are_maintained_whatever_their_organization_runs() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    idle_jobs(&ground, "now()").await;
    // One runs as many turns as it may, one is suspended, one is deleted.
    for statement in [
        "update org set concurrency = 1",
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).* from session s",
        "insert into job (org_id, session_id, kind, ready_at)
         select org_id, session_id, 'turn', now() from session
         where (org_id, session_id) not in (select org_id, session_id from job)",
        "update org set suspended_at = now() where org_id = (select org_id from org order by org_id limit 1)",
        "update org set deleted_at = now() where org_id = (select org_id from org order by org_id desc limit 1)",
    ] {
        ground.sql(statement).await;
    }
    let store = open(&ground);
    let queue = queue(&store);
    let turns = claim_all(&queue).await;
    assert!(turns.iter().all(|lease| lease.claimed().kind == Kind::Turn));
    let maintained = queue.claim_maintenance(8).await.expect("an answer");
    assert_eq!(maintained.len(), 2, "the one that is deleted has no sandboxes to keep");
    assert!(maintained.iter().all(|lease| lease.claimed().kind == Kind::Idle && !lease.claimed().taken_over));
    assert!(queue.claim_maintenance(8).await.expect("an answer").is_empty(), "each is held once");
    // They do not count for the concurrency: a turn that is ready now still runs.
    drop(turns);
    ground.sql("update org set concurrency = 2").await;
    ground
        .sql(
            "update job set ready_at = now(), is_scheduled = false where kind = 'turn' and worker_id is null",
        )
        .await;
    assert!(claim_all(&queue).await.is_empty(), "a turn waits for the job of its sandbox");
    for lease in &maintained {
        lease.finish().await.expect("an answer");
    }
    assert!(!claim_all(&queue).await.is_empty());
    store.close().await;
}

#[tokio::test]
async fn a_sandbox_is_left_to_the_turn_of_its_session() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 2).await;
    idle_jobs(&ground, "now() - interval '1 second'").await;
    ground.sql("update job set ready_at = now(), is_scheduled = false where kind = 'turn'").await;
    let store = open(&ground);
    let queue = queue(&store);
    assert!(queue.claim_maintenance(8).await.expect("an answer").is_empty(), "a turn is due");
    let turns = claim_all(&queue).await;
    assert!(turns.len() == 2 && queue.claim_maintenance(8).await.expect("an answer").is_empty(), "it runs");
    for lease in &turns {
        lease.finish().await.expect("an answer");
    }
    assert_eq!(queue.claim_maintenance(8).await.expect("an answer").len(), 2);
    store.close().await;
}

#[tokio::test]
async fn the_sandboxes_of_one_organization_do_not_delay_those_of_another() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    // 200 of one became idle before the others.
    for statement in [
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
         from session s, generate_series(1, 200)
         where s.org_id = (select org_id from org order by org_id limit 1)",
        "insert into job (org_id, session_id, kind, ready_at, is_scheduled)
         select org_id, session_id, 'idle', now() - interval '1 minute', true from session
         where (org_id, session_id) not in (select org_id, session_id from job)",
    ] {
        ground.sql(statement).await;
    }
    idle_jobs(&ground, "now() - interval '1 second'").await;
    ground
        .sql(
            "update job set ready_at = now() - interval '1 minute'
             where kind = 'idle' and org_id = (select org_id from org order by org_id limit 1)",
        )
        .await;
    let store = open(&ground);
    let queue = queue(&store);
    let claimed = queue.claim_maintenance(4).await.expect("an answer");
    let orgs: HashSet<_> = claimed.iter().map(|lease| lease.claimed().org).collect();
    assert_eq!((claimed.len(), orgs.len()), (4, 3));
    store.close().await;
}

#[tokio::test]
async fn a_claim_reads_the_sandboxes_that_are_due_and_no_others() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 10_000).await;
    idle_jobs(&ground, "now() + interval '1 hour'").await;
    ground.sql("vacuum analyze job").await;
    let store = open(&ground);
    let queue = queue(&store);
    let read = async || {
        // A connection reports what it read at the end of a statement, at most once a second.
        sleep(Duration::from_millis(1_100)).await;
        assert!(queue.claim_maintenance(8).await.expect("an answer").is_empty());
        ground.count(JOBS_READ).await
    };
    read().await;
    ground
        .sql(
            "update job set ready_at = now() where kind = 'idle'
                 and org_id in (select org_id from org order by org_id limit 5);
             select pg_stat_force_next_flush()",
        )
        .await;
    let before = ground.count(JOBS_READ).await;
    assert_eq!(queue.claim_maintenance(8).await.expect("an answer").len(), 5);
    let read = read().await - before;
    assert!(read < 1_000, "{read} entries were read for 5 of 10,000 jobs");
    store.close().await;
}
