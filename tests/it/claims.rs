//! Claims of jobs with a backlog, with many jobs that are due at one moment, and after an outage of the database.

use std::{collections::HashSet, time::Duration};

use sojourn::{base::Id, store::job::Claimant};
use sqlx::Connection;
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    jobs::{JOBS_READ, claim_all, claimant, jobs_read, open, queue, queue_of, waiting_orgs},
    support::service::Ground,
};

/// Counts the organizations that claims visit.
const VISITS: &str = "
create sequence visits;
grant usage on sequence visits to public;
create or replace function sojourn_jobs_held(org uuid) returns bigint language plpgsql volatile as $$
begin
    perform nextval('visits');
    return 0;
end
$$";

/// Adds sessions to organizations, each with a job that is due.
async fn add_jobs(ground: &Ground, each: u32, ready_at: &str, orgs: &str) {
    let sessions = format!(
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
         from session s, generate_series(1, {each})
         where s.org_id in ({orgs})"
    );
    let jobs = format!(
        "insert into job (org_id, session_id, kind, ready_at, is_scheduled)
         select org_id, session_id, 'turn', {ready_at}, true
         from session
         where (org_id, session_id) not in (select org_id, session_id from job)"
    );
    for statement in [sessions, jobs] {
        ground.sql(&statement).await;
    }
}

#[tokio::test]
async fn a_claim_without_work_for_its_node_visits_each_organization_once() {
    const ORGS: u32 = 200;
    let ground = Ground::new().await;
    waiting_orgs(&ground, ORGS).await;
    add_jobs(&ground, 5, "now() - interval '1 minute'", "select org_id from org").await;
    for statement in [
        VISITS,
        "insert into node (node_id) values (gen_random_uuid())",
        "update job
         set is_scheduled = false, node_id = (select node_id from node order by seen_at desc limit 1)
         where ready_at <= now()",
    ] {
        ground.sql(statement).await;
    }
    let store = open(&ground);
    let queue = queue(&store);
    for _ in 0..2 {
        let before = ground.count("select last_value from visits").await;
        assert!(claim_all(&queue).await.is_empty());
        let visits = ground.count("select last_value from visits").await - before;
        // The last claim of a rotation also visits some at its beginning; on a busy machine it ends after a second.
        assert!((1..2 * i64::from(ORGS)).contains(&visits), "{visits} visits");
    }
    let free = "update job
                set node_id = null
                where (org_id, session_id) in (select org_id, session_id from job where ready_at <= now() limit 5)";
    ground.sql(free).await;
    let mut leases = Vec::new();
    while leases.len() < 5 {
        leases.extend(claim_all(&queue).await);
    }
    drop(leases);
    store.close().await;
}

#[tokio::test]
async fn everything_that_is_due_becomes_ready_at_once() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 2).await;
    let (first, second) =
        ("select min(org_id::text)::uuid from org", "select max(org_id::text)::uuid from org");
    add_jobs(&ground, 1_500, "now() - interval '1 minute'", first).await;
    add_jobs(&ground, 1, "now() - interval '59 s'", second).await;
    let store = open(&ground);
    let queue = queue(&store);
    // One look, unless the machine is so busy that it takes more than a second.
    for _ in 0..3 {
        queue.ready_due_jobs().await.expect("a look");
    }
    assert_eq!(ground.count("select count(*) from job where is_scheduled and ready_at <= now()").await, 0);
    let claimed = queue.claim(2).await.expect("an answer").leases;
    let orgs = claimed.iter().map(|lease| lease.claimed().org).collect::<HashSet<_>>();
    assert_eq!(orgs.len(), 2, "each organization has its share");
    drop(claimed);
    store.close().await;
}

/// The leases of others have expired meanwhile and are renewed in a moment. Until then they would not count.
#[tokio::test]
async fn after_an_outage_holders_renew_their_leases_before_others_claim() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 1).await;
    let store = open(&ground);
    let queue = queue_of(&store, Claimant { lease: Duration::from_secs(6), ..claimant() });
    assert!(claim_all(&queue).await.is_empty());
    sleep(Duration::from_millis(5_500)).await;
    ground.sql("update job set ready_at = now(), is_scheduled = false").await;
    queue.ready_due_jobs().await.expect("an answer");
    assert!(claim_all(&queue).await.is_empty());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(claim_all(&queue).await.len(), 1);
    store.close().await;
}

#[tokio::test]
async fn jobs_that_cannot_run_here_do_not_make_claims_read_more() {
    let ground = Ground::new().await;
    waiting_orgs(&ground, 3).await;
    let mut dump = ground.database.superuser().await;
    let snapshot = "begin isolation level repeatable read; select count(*) from job";
    sqlx::raw_sql(snapshot).execute(&mut dump).await.expect("a snapshot");
    for statement in [
        "insert into node (node_id) values (gen_random_uuid())",
        // One of another node, and an operation of a suspended organization.
        "update job
         set ready_at = now() - interval '10 minutes', is_scheduled = false, node_id = (select node_id from node)
         where org_id = (select min(org_id::text)::uuid from org)",
        "update job
         set ready_at = now() - interval '10 minutes', is_scheduled = false, kind = 'operation'
         where org_id = (select max(org_id::text)::uuid from org)",
        "update org set suspended_at = now() where org_id = (select max(org_id::text)::uuid from org)",
        "insert into job (org_id, session_id, kind, ready_at)
         select org_id, gen_random_uuid(), 'turn', now() - interval '5 minutes'
         from org, generate_series(1, 20000)
         where suspended_at is null",
        "delete from job where not is_scheduled and ready_at > now() - interval '6 minutes'",
        "vacuum job",
    ] {
        ground.sql(statement).await;
    }
    let store = open(&ground);
    let queue = queue(&store);
    // The first claim of a process reads everything.
    jobs_read(&ground, &queue).await;
    let before = ground.count(JOBS_READ).await;
    let read = jobs_read(&ground, &queue).await - before;
    assert!(read < 200, "{read} entries were read for no job");
    // Resumed, the operation runs at once.
    let mut superuser = ground.database.superuser().await;
    let suspended = "select org_id from org where suspended_at is not null";
    let org: Uuid = sqlx::query_scalar(suspended).fetch_one(&mut superuser).await.expect("an organization");
    store.suspend_org(Id::from_uuid(org), false).await.expect("it is resumed");
    assert_eq!(claim_all(&queue).await.len(), 1);
    dump.close().await.expect("a clean end");
    store.close().await;
}
