//! Jobs: which a claim finds, whoever else waits, what it reads to find them, and that none is lost.

use std::{collections::HashSet, time::Duration};

use futures::future::join_all;

use serde_json::json;
use sojourn::{
    base::{Id, Origin},
    domain::{OrgId, SessionKind},
    queue::{Lease, Queue},
    store::{
        Store,
        job::{ClaimCursor, ClaimSize, Claimant, Held},
        notification::Notifications,
        process::Process,
    },
};
use sqlx::{AssertSqlSafe, Connection};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::support::{gate::Gate, service::Ground, wait::wait_for};

/// Rows of sessions read so far.
const READ: &str = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables
                    where schemaname = 'public' and relname = 'session'";

/// Entries of the indexes of `job` that reads have returned, those of rows that are gone included.
pub const JOBS_READ: &str = "select sum(idx_tup_read)::bigint from pg_stat_user_indexes
                         where schemaname = 'public' and relname = 'job'";

pub fn open(ground: &Ground) -> Store {
    ground.store(1)
}

pub fn claimant() -> Claimant {
    let uuid = || Id::<SessionKind>::uuid(Origin::system().id());
    let lease = Duration::from_secs(60);
    Claimant { worker: uuid(), nodes: uuid().into(), lease, node_silence: lease }
}

pub fn queue(store: &Store) -> Queue {
    queue_of(store, claimant())
}

pub fn queue_of(store: &Store, claimant: Claimant) -> Queue {
    Queue::new(store.clone(), Notifications::new(Process::alone(claimant.worker)), Origin::system(), claimant)
}

/// Claims until a claim finds nothing.
pub async fn claim_all(queue: &Queue) -> Vec<Lease> {
    let mut leases = Vec::new();
    loop {
        let claimed = queue.claim(10).await.expect("an answer");
        if claimed.leases.is_empty() {
            return leases;
        }
        leases.extend(claimed.leases);
    }
}

/// Entries of the indexes of `job` read so far. A connection reports what it read at the end of a statement,
/// at most once a second.
pub async fn jobs_read(ground: &Ground, queue: &Queue) -> i64 {
    assert!(claim_all(queue).await.is_empty());
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(claim_all(queue).await.is_empty());
    ground.count(JOBS_READ).await
}

/// Makes organizations with one session each, whose turn waits for a time that has not come.
pub async fn waiting_orgs(ground: &Ground, count: u32) {
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    api.stop().await;
    for statement in [
        format!(
            "insert into org
             select (jsonb_populate_record(t, jsonb_build_object('org_id', gen_random_uuid()))).*
             from org t, generate_series(2, {count})"
        ),
        "insert into session
         select (jsonb_populate_record(
             s, jsonb_build_object('org_id', t.org_id, 'session_id', gen_random_uuid())
         )).*
         from session s join org t on t.org_id <> s.org_id"
            .to_owned(),
        "insert into job (org_id, session_id, kind, ready_at, is_scheduled)
         select org_id, session_id, 'turn', now() + interval '1 hour', true from session"
            .to_owned(),
    ] {
        ground.sql(&statement).await;
    }
}

/// Makes the turns of these organizations ready, by their places in the order of ids. Returns how many jobs are
/// due then. What its own connection read is in the statistics when it returns.
async fn make_ready(ground: &Ground, places: &str) -> i64 {
    let update = format!(
        "update job j
         set ready_at = now(), is_scheduled = false
         from (select org_id, row_number() over (order by org_id) as place from org) o
         where o.org_id = j.org_id and j.worker_id is null and ({places})"
    );
    let mut superuser = ground.database.superuser().await;
    sqlx::raw_sql(AssertSqlSafe(update)).execute(&mut superuser).await.expect("jobs");
    let (due, ()) = sqlx::query_as(
        "select count(*), pg_stat_force_next_flush() from job where worker_id is null and ready_at <= now()",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("a count");
    superuser.close().await.expect("a clean end");
    due
}

#[tokio::test]
async fn every_due_job_is_claimed_whoever_waits() {
    for count in [300, 10_000] {
        let ground = Ground::new().await;
        waiting_orgs(&ground, count).await;
        let store = open(&ground);
        let queue = queue(&store);
        jobs_read(&ground, &queue).await;
        let half = count / 2;
        for places in [
            "place <= 2".to_owned(),
            format!("place > {}", count - 2),
            format!("place in (3, {half}, {})", count - 3),
            "place % 37 = 5".to_owned(),
        ] {
            let due = make_ready(&ground, &places).await;
            let before = ground.count(JOBS_READ).await;
            let leases = claim_all(&queue).await;
            assert_eq!(leases.len() as i64, due, "{count} organizations, {places}");
            let read = jobs_read(&ground, &queue).await - before;
            assert!(read < 60 * (due + 10), "{read} entries were read for {due} of {count} jobs");
        }
        store.close().await;
    }
}

#[tokio::test]
async fn a_backlog_of_some_delays_others_by_their_share_only() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 300).await;
    // 5,000 more sessions of one organization, all ready; the jobs of 100 others belong to another node.
    for statement in [
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
         from session s, generate_series(1, 5000)
         where s.org_id = (select org_id from org order by org_id limit 1)",
        "insert into job (org_id, session_id, kind, ready_at)
         select org_id, session_id, 'turn', now() - interval '1 minute'
         from session
         where (org_id, session_id) not in (select org_id, session_id from job)",
        "insert into node (node_id) values (gen_random_uuid())",
        "update job
         set node_id = (select node_id from node order by seen_at desc limit 1)
         where org_id in (select org_id from org order by org_id offset 100 limit 100)",
    ] {
        ground.sql(statement).await;
    }
    make_ready(&ground, "place between 2 and 200 or place = 299").await;
    let store = open(&ground);
    let queue = queue(&store);
    let mut orgs = HashSet::new();
    let mut leases = Vec::new();
    // 1 + 99 + 1 organizations have work that may run: a job of each, and some of the first again.
    for _ in 0..12 {
        let claimed = queue.claim(10).await.expect("an answer").leases;
        orgs.extend(claimed.iter().map(|lease| lease.claimed().org));
        leases.extend(claimed);
    }
    assert_eq!(orgs.len(), 101, "of {} jobs", leases.len());
    drop(leases);
    store.close().await;
}

#[tokio::test]
async fn concurrent_claims_respect_the_concurrency_of_an_organization() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 2).await;
    ground.sql("update org set concurrency = 3").await;
    let store = ground.store(8);
    let queues: Vec<_> = (0..8).map(|_| queue(&store)).collect();
    // Half of them have looked before, so they take what became ready since; the others take the oldest jobs.
    for queue in &queues[..4] {
        assert!(queue.claim(5).await.expect("an answer").leases.is_empty());
    }
    for statement in [
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
         from session s, generate_series(1, 20)",
        "insert into job (org_id, session_id, kind, ready_at)
         select org_id, session_id, 'turn',
                now() - interval '1 hour' * (row_number() over (partition by org_id) % 2)
         from session
         where (org_id, session_id) not in (select org_id, session_id from job)",
    ] {
        ground.sql(statement).await;
    }
    // Each of them counts before another one has written.
    let trigger = "create trigger block before update on job for each row execute function block();";
    let gate = Gate::close(&ground, trigger).await;
    let open = async {
        gate.is_reached().await;
        sleep(Duration::from_secs(1)).await;
        gate.open().await;
    };
    let (claims, ()) = tokio::join!(join_all(queues.iter().map(|queue| queue.claim(5))), open);
    let mut leases: Vec<_> = claims.into_iter().flat_map(|claim| claim.expect("an answer").leases).collect();
    // Those that found another one counting have taken nothing.
    leases.extend(queues[4].claim(5).await.expect("an answer").leases);
    let held = "select max(held) from (
                    select count(*) as held from job where worker_id is not null group by org_id
                ) h";
    assert_eq!((ground.count(held).await, leases.len()), (3, 6), "both organizations run what they may");
    drop(leases);
    store.close().await;
}

#[tokio::test]
async fn a_claim_does_not_read_what_a_held_snapshot_keeps() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    let mut dump = ground.database.superuser().await;
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from job")
        .execute(&mut dump)
        .await
        .expect("a snapshot");
    for statement in [
        "insert into job (org_id, session_id, kind, ready_at)
         select org_id, gen_random_uuid(), 'turn', now() - interval '5 minutes' from org, generate_series(1, 20000)",
        "delete from job where not is_scheduled",
        "vacuum job",
    ] {
        ground.sql(statement).await;
    }
    let store = open(&ground);
    let queue = queue(&store);
    // The first claim of a process reads everything.
    jobs_read(&ground, &queue).await;
    make_ready(&ground, "place = 2").await;
    let before = ground.count(JOBS_READ).await;
    assert_eq!(claim_all(&queue).await.len(), 1);
    let read = jobs_read(&ground, &queue).await - before;
    assert!(read < 200, "{read} entries were read for one job");
    dump.close().await.expect("a clean end");
    store.close().await;
}

#[tokio::test]
async fn a_job_whose_time_comes_and_a_job_whose_holder_is_gone_are_claimed() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    let store = open(&ground);
    let lease = Duration::from_millis(200);
    let claimant = Claimant { lease, ..claimant() };
    let queue = Queue::new(
        store.clone(),
        Notifications::new(Process::alone(claimant.worker)),
        Origin::system(),
        claimant,
    );
    queue.ready_due_jobs().await.expect("a look");
    assert!(claim_all(&queue).await.is_empty());
    ground.sql("update job set ready_at = now() + interval '300 milliseconds'").await;
    let mut taken_over = 0;
    let mut seen = HashSet::new();
    for _ in 0..30 {
        queue.ready_due_jobs().await.expect("a look");
        for lease in claim_all(&queue).await {
            seen.insert(lease.claimed().session);
            taken_over += u32::from(lease.claimed().taken_over);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(seen.len() == 3 && taken_over >= 3, "{} jobs, {taken_over} takeovers", seen.len());
    store.close().await;
}

#[tokio::test]
async fn a_lease_ends_when_its_own_worker_has_claimed_the_job_again() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 1).await;
    ground.sql("update job set ready_at = now(), is_scheduled = false").await;
    let store = open(&ground);
    let claimant = Claimant { lease: Duration::from_millis(200), ..claimant() };
    let queue = Queue::new(
        store.clone(),
        Notifications::new(Process::alone(claimant.worker)),
        Origin::system(),
        claimant.clone(),
    );
    let first = claim_all(&queue).await.pop().expect("a job");
    // This process was away for longer than its lease.
    let again = wait_for("it is claimed again", async || {
        queue.ready_due_jobs().await.expect("a look");
        claim_all(&queue).await.pop()
    })
    .await;
    // A statement of the first lease was on its way.
    let continued = store.refence(claimant.worker, first.claimed(), claimant.lease).await.expect("an answer");
    assert!(continued.is_none());
    assert_eq!(ground.count("select max(epoch) from session").await, again.fence().epoch);
    store.close().await;
}

#[tokio::test]
async fn leases_are_renewed_while_others_hold_locks() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 2).await;
    ground.sql("update job set ready_at = now(), is_scheduled = false").await;
    let store = ground.store(4);
    let queue = queue(&store);
    let leases = claim_all(&queue).await;
    assert_eq!(leases.len(), 2);
    // A process stopped in a transaction that changed a job, and in one for which every other statement waits.
    let locked = leases[0].fence().session.uuid();
    let lock =
        "begin; lock table exec_reservation in access exclusive mode; select from job where session_id = '";
    let mut stopped = ground.database.superuser().await;
    let lock = format!("{lock}{locked}' for update");
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut stopped).await.expect("the locks");
    let waiting = (0..8).map(|_| store.release_exec(leases[0].fence(), "call"));
    let mut waiting = std::pin::pin!(join_all(waiting));
    assert!(timeout(Duration::from_millis(300), waiting.as_mut()).await.is_err(), "they wait");
    let mut held = Held::default();
    leases.iter().for_each(|lease| {
        let of = lease.claimed();
        held.push(of.org, of.session, of.kind);
    });
    let renew = store.renew(queue.worker(), Duration::from_secs(600), &held);
    let renewed = timeout(Duration::from_secs(2), renew).await.expect("in time").expect("an answer");
    assert_eq!(renewed.len(), 2, "none is lost");
    sqlx::raw_sql("rollback").execute(&mut stopped).await.expect("the end");
    drop(stopped);
    waiting.await;
    let soon = "select count(*) from job where ready_at < now() + interval '5 minutes'";
    assert_eq!(ground.count(soon).await, 1, "the locked one is left for the next time");
    store.close().await;
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
    let claimant = claimant();
    let start = ClaimCursor { after: OrgId::from_uuid(Uuid::nil()), since: None, margin: Duration::ZERO };
    let before = ground.count(READ).await;
    let mut taken = 0;
    for _ in 0..12 {
        taken += store
            .claim(&claimant, start, &ClaimSize { jobs: 2, holders: None })
            .await
            .expect("an answer")
            .jobs
            .len();
    }
    store.close().await;
    assert_eq!(taken, 20);
    let read = ground.count(READ).await - before;
    assert!((20..400).contains(&read), "{read} rows of sessions were read for {taken} jobs");
}

#[tokio::test]
async fn a_job_is_claimed_that_was_written_while_the_clock_was_behind() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 2).await;
    let store = open(&ground);
    let queue = queue(&store);
    assert!(claim_all(&queue).await.is_empty(), "no job is due");
    queue.ready_due_jobs().await.expect("an answer");
    // One waits for its time, the other one is ready; both by a clock an hour behind.
    ground.sql("update job set ready_at = now() - interval '1 hour'").await;
    ground
        .sql("update job set is_scheduled = false where session_id = (select min(session_id::text)::uuid from job)")
        .await;
    let mut claimed = Vec::new();
    wait_for("both are claimed", async || {
        queue.ready_due_jobs().await.expect("an answer");
        claimed.extend(claim_all(&queue).await);
        (claimed.len() == 2).then_some(())
    })
    .await;
    store.close().await;
}

#[tokio::test]
async fn a_job_that_is_finished_while_an_operation_is_requested_remains() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 1).await;
    ground.sql("update job set kind = 'operation', ready_at = now(), is_scheduled = false").await;
    let store = open(&ground);
    let queue = queue(&store);
    let lease = claim_all(&queue).await.pop().expect("the job");

    // A request that is not committed yet holds the session's row; the end of the job waits for it.
    let mut request = ground.database.superuser().await;
    let sql = "begin;
               update session set operations = operations + 1;
               insert into operation (org_id, session_id, operation_id, request, actor)
               select org_id, session_id, gen_random_uuid(), '{}', '{}' from session";
    sqlx::raw_sql(sql).execute(&mut request).await.expect("a request");
    let waits = "select count(*) from pg_stat_activity
                 where wait_event_type = 'Lock' and datname = current_database()";
    let commit = async {
        wait_for("the end of the job waits", async || (ground.count(waits).await > 0).then_some(())).await;
        sqlx::raw_sql("commit").execute(&mut request).await.expect("a commit");
    };
    let finish = async { lease.finish().await.expect("an answer") };
    tokio::join!(finish, commit);
    drop(lease);
    assert_eq!(claim_all(&queue).await.len(), 1, "the job of the requested operation is ready");
    request.close().await.expect("a clean end");
    store.close().await;
}
