//! Jobs that maintain sandboxes: claimed apart from turns, in a rotation over the organizations.

use std::{collections::HashSet, time::Duration};

use sojourn::{
    queue::{Lease, Queue},
    store::{Store, job::Kind},
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    jobs::{JOBS_READ, claim_all, claimant, open, queue_of, waiting_orgs},
    support::service::Ground,
};

/// Rows of jobs and sessions read without an index.
const ROWS_READ: &str = "select sum(seq_tup_read)::bigint from pg_stat_user_tables
                         where schemaname = 'public' and relname in ('job', 'session')";

/// A worker of a node.
struct Worker {
    store: Store,
    queue: Queue,
    node: Uuid,
}

impl Worker {
    fn new(ground: &Ground) -> Self {
        let (store, claimant) = (open(ground), claimant());
        let node = claimant.nodes.list()[0];
        let queue = queue_of(&store, claimant);
        Self { store, queue, node }
    }

    async fn claim(&self, jobs_max: usize) -> Vec<Lease> {
        self.queue.claim_maintenance(jobs_max).await.expect("an answer")
    }

    /// Makes the job of the sandbox of each session due, or those `of` some.
    async fn idle(&self, ground: &Ground, of: &str, ready_at: &str) {
        let insert = format!(
            "insert into job (org_id, session_id, kind, ready_at, is_scheduled, node_id)
             select org_id, session_id, 'idle', {ready_at}, true, '{}' from session where {of}
             on conflict (org_id, session_id, kind) do update set ready_at = excluded.ready_at",
            self.node
        );
        ground.sql(&insert).await;
    }
}

/// Adds sessions to the first organization, or to all.
async fn more_sessions(ground: &Ground, count: u32, of: &str) {
    let insert = format!(
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
         from session s, generate_series(1, {count})
         where {of}"
    );
    ground.sql(&insert).await;
}

const FIRST: &str = "org_id = (select org_id from org order by org_id limit 1)";
const LAST: &str = "org_id = (select org_id from org order by org_id desc limit 1)";

#[tokio::test]
async fn sandboxes_are_maintained_whatever_their_organization_runs() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    let worker = Worker::new(&ground);
    worker.idle(&ground, "true", "now()").await;
    // Each may run one turn; one is suspended, one is deleted.
    for statement in [
        "update org set concurrency = 1".to_owned(),
        format!("update org set suspended_at = now() where {FIRST}"),
        format!("update org set deleted_at = now() where {LAST}"),
    ] {
        ground.sql(&statement).await;
    }
    let maintained = worker.claim(8).await;
    assert_eq!(maintained.len(), 2, "the one that is deleted has no sandboxes to keep");
    assert!(maintained.iter().all(|lease| lease.claimed().kind == Kind::Idle && !lease.claimed().taken_over));
    assert!(worker.claim(8).await.is_empty(), "each is held once");
    // They do not count for the concurrency: a turn of another session runs. One of the same session waits.
    more_sessions(&ground, 1, "true").await;
    ground
        .sql(
            "insert into job (org_id, session_id, kind, ready_at)
             select org_id, session_id, 'turn', now() from session
             on conflict (org_id, session_id, kind) do update set ready_at = now(), is_scheduled = false",
        )
        .await;
    let turns = claim_all(&worker.queue).await;
    let idle: HashSet<_> = maintained.iter().map(|lease| lease.claimed().session).collect();
    assert_eq!(turns.len(), 2);
    assert!(turns.iter().all(|lease| !idle.contains(&lease.claimed().session)));
    worker.store.close().await;
}

#[tokio::test]
async fn a_sandbox_is_left_to_the_turn_of_its_session() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 2).await;
    let worker = Worker::new(&ground);
    let due = async || worker.idle(&ground, "true", "now()").await;
    due().await;
    ground.sql("update job set ready_at = now(), is_scheduled = false where kind = 'turn'").await;
    assert!(worker.claim(8).await.is_empty(), "a turn is due");
    let later = "select count(*) from job where kind = 'idle' and ready_at > now()";
    assert_eq!(ground.count(later).await, 2, "it is not looked at for a while");
    let turns = claim_all(&worker.queue).await;
    due().await;
    assert!(turns.len() == 2 && worker.claim(8).await.is_empty(), "it runs");
    for lease in &turns {
        lease.finish().await.expect("an answer");
    }
    assert!(claim_all(&worker.queue).await.is_empty());
    due().await;
    assert_eq!(worker.claim(8).await.len(), 2);
    worker.store.close().await;
}

#[tokio::test]
async fn the_sandboxes_of_one_organization_do_not_delay_those_of_another() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    let worker = Worker::new(&ground);
    // 200 of one became idle before the others.
    more_sessions(&ground, 200, FIRST).await;
    worker.idle(&ground, FIRST, "now() - interval '1 minute'").await;
    worker.idle(&ground, &format!("not {FIRST}"), "now() - interval '1 second'").await;
    let mut orgs = Vec::new();
    // Each place becomes free alone.
    for _ in 0..5 {
        let claimed = worker.claim(1).await;
        orgs.extend(claimed.iter().map(|lease| lease.claimed().org));
    }
    assert_eq!(orgs.len(), 5);
    assert_eq!(orgs[..3].iter().collect::<HashSet<_>>().len(), 3, "{orgs:?}");
    assert!(orgs[3..].iter().all(|org| *org == orgs[0]), "{orgs:?}");
    worker.store.close().await;
}

#[tokio::test]
async fn those_of_a_node_that_is_lost_are_claimed_by_another() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    let worker = Worker::new(&ground);
    worker.idle(&ground, "true", "now()").await;
    let lost = format!("update job set node_id = gen_random_uuid() where kind = 'idle' and {FIRST}");
    ground.sql(&lost).await;
    for statement in [
        "insert into node (node_id) values ('00000000-0000-7000-8000-00000000000a')".to_owned(),
        format!(
            "update job set node_id = '00000000-0000-7000-8000-00000000000a' where kind = 'idle' and {LAST}"
        ),
    ] {
        ground.sql(&statement).await;
    }
    let claimed = worker.claim(8).await;
    assert_eq!(claimed.len(), 2, "not that of a node that answers");
    worker.store.close().await;
}

#[tokio::test]
async fn a_claim_reads_the_sandboxes_that_are_due_and_no_others() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 10_000).await;
    let worker = Worker::new(&ground);
    worker.idle(&ground, "true", "now() + interval '1 hour'").await;
    let settled = async || {
        // A connection reports what it read at the end of a statement, at most once a second.
        sleep(Duration::from_millis(1_100)).await;
        worker.queue.ready_due_jobs().await.expect("an answer");
        (ground.count(JOBS_READ).await, ground.count(ROWS_READ).await)
    };
    assert!(worker.claim(8).await.is_empty());
    settled().await;
    // Some of another node, some that a turn uses, and five that can be claimed.
    for (update, count) in
        [("node_id = '00000000-0000-7000-8000-00000000000a'", 1_000), ("ready_at = now()", 1_300)]
    {
        let update = format!(
            "update job set {update} where kind = 'idle'
                 and org_id in (select org_id from org order by org_id limit {count})"
        );
        ground.sql(&update).await;
    }
    ground
        .sql(
            "insert into node (node_id) values ('00000000-0000-7000-8000-00000000000a');
             update job set ready_at = now() where kind = 'turn'
                 and org_id in (select org_id from org order by org_id offset 1000 limit 295)",
        )
        .await;
    for table in ["job", "session"] {
        ground.sql(&format!("vacuum analyze {table}")).await;
    }
    // Those that turns use are put off, by the claim for a moment and here for the time of the test.
    while !worker.claim(8).await.is_empty() {}
    ground
        .sql(
            "update job set ready_at = now() + interval '1 hour'
             where kind = 'idle' and worker_id is null and ready_at < now() + interval '10 seconds'",
        )
        .await;
    worker
        .idle(&ground, "org_id in (select org_id from org order by org_id offset 1400 limit 5)", "now()")
        .await;
    // Entries of the updates above are dead and would be read until they are removed.
    ground.sql("vacuum analyze job").await;
    let before = settled().await;
    assert_eq!(worker.claim(8).await.len(), 5);
    let after = settled().await;
    let (entries, rows) = (after.0 - before.0, after.1 - before.1);
    assert!(
        entries < 3_000 && rows < 100,
        "{entries} entries and {rows} rows were read for 5 of 10,000 jobs"
    );
    worker.store.close().await;
}
