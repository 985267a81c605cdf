//! Deletion of what is past its time: all of it, by one worker, also behind what cannot be deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use serde_json::json;
use sqlx::Connection;

use crate::{
    fake::bucket::Bucket,
    support::{
        clock::MovedClock,
        pages,
        program::Program,
        service::{Caller, Ground, KEY},
        wait::wait_for,
    },
};

/// Rows that are past their time, and the statement that inserts them for one session.
const MADE: [(&str, &str); 13] = [
    (
        "idempotency where scope = 'header'",
        "insert into idempotency (org_id, scope, key, fingerprint, created_at)
         select org_id, 'header', gen_random_uuid()::text, '', now() - interval '25 hours'
         from session, generate_series(1, 12000)",
    ),
    (
        "client_token where expires_at < now()",
        "insert into client_token (org_id, session_id, hash, scopes, level, expires_at)
         select org_id, session_id, sha256(gen_random_uuid()::text::bytea), '{}', 1, now() - interval '1 second'
         from session, generate_series(1, 12000)",
    ),
    (
        "removal where removed_at < now() - interval '1 day'",
        "insert into removal (org_id, session_id, removed_at)
         select org_id, gen_random_uuid(), now() - interval '31 days' from session, generate_series(1, 12000)",
    ),
    (
        "operation",
        "insert into operation (org_id, session_id, operation_id, request, actor, answer, completed_at)
         select org_id, session_id, gen_random_uuid(), '{}', '{}', '{}', now() - interval '25 hours'
         from session, generate_series(1, 1500)",
    ),
    (
        "node where seen_at < now() - interval '1 day'",
        "insert into node (node_id, seen_at)
         select gen_random_uuid(), now() - interval '31 days' from generate_series(1, 100)",
    ),
    (
        "destination",
        "insert into destination (org_id, destination_id, url, level, include_raw, enabled, created_after_seq,
                                  sealed_secret, deleted_at)
         select org_id, gen_random_uuid(), 'https://example.com', 2, false, false, 0, '', now() - interval '63 days'
         from session, generate_series(1, 1500)",
    ),
    (
        "schedule_run",
        "insert into schedule (org_id, schedule_id, agent_id, cron, time_zone, input, overlap, enabled, session_template)
         select org_id, gen_random_uuid(), agent_id, '0 0 1 1 *', 'UTC', '\"Go.\"', 'skip', false, '{}' from session;
         insert into schedule_run (org_id, run_id, schedule_id, slot, manual, state, created_at)
         select org_id, gen_random_uuid(), schedule_id, now() - number * interval '1 hour', false, 'skipped',
                now() - interval '31 days'
         from schedule, generate_series(1, 12000) as number",
    ),
    (
        "file",
        "insert into file (org_id, file_id, name, media_type, bytes, sha256, kept, created_at)
         select org_id, gen_random_uuid(), 'a.txt', 'text/plain', 1, '', false, now() - interval '25 hours'
         from session, generate_series(1, 1500)",
    ),
    (
        "skill",
        "insert into skill (org_id, skill_id, name, description, sha256, bytes, files, created_at)
         select org_id, gen_random_uuid(), 'a', '', '', 1, 1, now() - interval '25 hours'
         from session, generate_series(1, 1500)",
    ),
    (
        "object",
        "insert into object (org_id, digest, bytes, kept_until)
         select org_id, sha256(gen_random_uuid()::text::bytea), 1, now() - interval '1 hour'
         from session, generate_series(1, 1500)",
    ),
    (
        "sandbox_wait",
        "insert into sandbox_wait (org_id, session_id, node_id, shortage, seen_at)
         select org_id, session_id, gen_random_uuid(), 'node_cpu', now() - interval '2 minutes' from session",
    ),
    (
        "usage_hour where shard <> 0",
        "insert into usage_hour (
             org_id, hour, agent_id, model, shard, steps, unpriced_steps, tool_calls, input_tokens, output_tokens,
             cache_write_tokens, cache_read_tokens, model_micros, sandbox_cpu_micros, sandbox_memory_micros, fee_micros
         )
         select org_id, date_trunc('day', now(), 'UTC') - (48 + number) * interval '1 hour', agent_id, 'm', shard,
                1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
         from session, generate_series(1, 1500) as number, generate_series(0, 7) as shard",
    ),
    (
        "session where status = 'archived' and stopped_at < now() - interval '1 day'",
        "insert into session
         select (jsonb_populate_record(s, jsonb_build_object(
             'session_id', gen_random_uuid(), 'status', 'archived', 'stopped_by', s.actor::jsonb,
             'stopped_at', now() - interval '2 days'
         ))).*
         from session s, generate_series(1, 1500)",
    ),
];

/// The kinds of these rows in the metrics.
const KINDS: [&str; 13] = [
    "response",
    "client_token",
    "removal",
    "operation",
    "node",
    "destination",
    "schedule_run",
    "file",
    "skill",
    "object",
    "sandbox_wait",
    "usage_shard",
    "session",
];

#[tokio::test]
async fn everything_past_its_time_is_deleted_at_once() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api", "--metrics-listen=127.0.0.1:0"]).await;
    let owner = api.owner();
    let agent = owner.inline_agent().await;
    let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let kept = format!("/sessions/{}", made["session"]["id"].as_str().expect("an id"));
    owner.patch("/organization", json!({ "retention_days": 1 })).await.ok();
    let age = |ages: &BTreeMap<String, f64>, kind: &str| {
        ages[&format!("sojourn_retention_age_seconds{{kind=\"{kind}\"}}")]
    };
    let ages = api.metrics().await;
    for kind in KINDS {
        assert_eq!(age(&ages, kind), 0.0, "{kind}");
    }
    for (_, statement) in MADE {
        ground.sql(statement).await;
    }
    let ages = api.metrics().await;
    for (kind, seconds) in
        [("session", 80_000.0), ("response", 3_500.0), ("operation", 3_500.0), ("node", 80_000.0)]
    {
        assert!(age(&ages, kind) > seconds, "{kind}: {ages:?}");
    }
    for kind in KINDS {
        assert!(age(&ages, kind) > 0.0, "{kind}: {ages:?}");
    }

    let worker = ground.serve(&["--role=worker"]).await;
    for (what, _) in MADE {
        let rows = format!("select count(*) from {what}");
        wait_for(what, async || (ground.count(&rows).await == 0).then_some(())).await;
    }
    owner.get(&kept).await.ok();
    assert_eq!(ground.count("select count(*) from node").await, 1, "the worker's");
    assert_eq!(ground.count("select sum(steps)::bigint from usage_hour").await, 8 * 1_500);
    let ages = api.metrics().await;
    for kind in KINDS {
        assert_eq!(age(&ages, kind), 0.0, "{kind}");
    }
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn what_cannot_be_deleted_delays_nothing_else() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    api.stop().await;
    // More than a page of sessions whose blobs cannot be removed, older than one whose blobs can.
    let blobs = ground.data_dir.path().join("blobs");
    ground
        .sql(
            "insert into purged_session_blobs (org_id, session_id, created_at)
             select o.org_id, s.session_id, now() - interval '2 hours'
             from (select gen_random_uuid() as org_id) o
             cross join (select gen_random_uuid() as session_id from generate_series(1, 250)) s;
             insert into purged_session_blobs (org_id, session_id, created_at)
             select gen_random_uuid(), gen_random_uuid(), now() - interval '1 hour'",
        )
        .await;
    let mut superuser = ground.database.superuser().await;
    let org: uuid::Uuid =
        sqlx::query_scalar("select org_id from purged_session_blobs order by created_at limit 1")
            .fetch_one(&mut superuser)
            .await
            .expect("a row");
    superuser.close().await.expect("a clean end");
    let directory = blobs.join(org.to_string());
    fs::write(&directory, "not a directory").unwrap();

    let worker = ground.serve(&["--role=worker"]).await;
    let rows = "select count(*) from purged_session_blobs where removed_at is null";
    wait_for("the one that can be deleted", async || (ground.count(rows).await == 250).then_some(())).await;
    fs::remove_file(&directory).unwrap();
    wait_for("the others", async || (ground.count(rows).await == 0).then_some(())).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_long_log_is_deleted_in_steps_after_its_session() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let body = json!({ "destinations": [{ "url": "https://example.com", "level": "user" }] });
    let made = owner.post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let long = "update session set head = 25001;
                insert into event
                select (jsonb_populate_record(e, jsonb_build_object('seq', n, 'event_id', gen_random_uuid()))).*
                from event e, generate_series(2, 25001) n;
                insert into delivery (org_id, delivery_id, session_id, destination_id, event_id, event_seq, type, status,
                                      ready_at)
                select e.org_id, gen_random_uuid(), e.session_id, d.destination_id, e.event_id, e.seq, e.type,
                       case when e.seq <= 100 then 'pending' else 'dead_letter' end,
                       case when e.seq <= 100 then now() + interval '1 hour' end
                from event e join destination d using (org_id, session_id) where e.seq <= 3000;
                insert into delivery_attempt (org_id, delivery_id, session_id, number, duration_ms)
                select org_id, delivery_id, session_id, 1, 1 from delivery";
    ground.sql(long).await;
    let session = format!("/sessions/{id}");
    assert_eq!(owner.delete(&session).await.status, 204);
    owner.get(&format!("{session}/events")).await.error(404);
    assert_eq!(ground.count("select count(*) from event").await, 25_001);
    // The receiver gets none of them any more.
    ground.sql("update delivery set ready_at = now() where ready_at is not null").await;
    let pending = "select count(*) from delivery where ready_at is not null";
    wait_for("the claim", async || (ground.count(pending).await == 0).then_some(())).await;
    assert_eq!(ground.count("select count(*) from delivery where status <> 'dead_letter'").await, 0);
    assert_eq!(ground.count("select count(*) from deleted_log").await, 1);

    let worker = ground.serve(&["--role=worker"]).await;
    let left = "select (select count(*) from event) + (select count(*) from delivery)
                       + (select count(*) from delivery_attempt)
                       + (select count(*) from deleted_log)";
    wait_for("the rows", async || (ground.count(left).await == 0).then_some(())).await;
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_session_whose_parent_is_locked_is_deleted_later() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    owner.post("/sessions", json!({})).await.ok();
    owner.patch("/organization", json!({ "retention_days": 1 })).await.ok();
    let expired = "insert into session
                   select (jsonb_populate_record(s, jsonb_build_object(
                       'session_id', gen_random_uuid(), 'status', 'archived', 'stopped_by', s.actor::jsonb,
                       'stopped_at', now() - interval '2 days', 'parent_session_id', parent
                   ))).*
                   from session s, (select session_id from session union all select null) p (parent)";
    ground.sql(expired).await;
    let mut superuser = ground.database.superuser().await;
    let mut turn = superuser.begin().await.expect("a transaction");
    let locked = "select from session where status <> 'archived' for update";
    sqlx::query(locked).execute(&mut *turn).await.expect("a lock");

    let worker = ground.serve(&["--role=worker"]).await;
    let sessions = "select count(*) from session";
    let waiting = "select count(*) from pg_stat_activity
                   where wait_event_type = 'Lock' and datname = current_database()";
    let is_left_out = async || {
        assert_eq!(ground.count(waiting).await, 0, "retention waits for no turn");
        (ground.count(sessions).await == 2).then_some(())
    };
    wait_for("the one without a parent", is_left_out).await;
    turn.commit().await.expect("a commit");
    wait_for("its child", async || (ground.count(sessions).await == 1).then_some(())).await;
    superuser.close().await.expect("a clean end");
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_silent_bucket_delays_no_row_and_no_shutdown() {
    let bucket = Bucket::open().await;
    let ground = Ground::new().await;
    let program = Program::with_environment(&ground, &["--role=api"], bucket.environment());
    Caller::new(&program.base, KEY).post("/sessions", json!({})).await.ok();
    program.kill();
    ground
        .sql(
            "insert into purged_session_blobs (org_id, session_id, created_at)
             select gen_random_uuid(), gen_random_uuid(), now() - interval '2 hours' from generate_series(1, 500);
             insert into operation (org_id, session_id, operation_id, request, actor, answer, completed_at)
             select org_id, session_id, gen_random_uuid(), '{}', '{}', '{}', now() - interval '25 hours'
             from session, generate_series(1, 500)",
        )
        .await;
    bucket.hang(true);
    let worker = Program::with_environment(&ground, &[], bucket.environment());
    // Its start has asked for the id of the store.
    let asked = bucket.unanswered();
    wait_for("retention waits for the bucket", async || (bucket.unanswered() > asked).then_some(())).await;
    let expired = "select count(*) from idempotency where key like 'old-%'";
    for round in 0..3 {
        ground
            .sql(&format!(
                "insert into idempotency (org_id, scope, key, fingerprint, created_at)
                 select org_id, 'header', 'old-{round}-' || n, '', now() - interval '25 hours'
                 from session, generate_series(1, 2000) n"
            ))
            .await;
        wait_for("the expired responses", async || (ground.count(expired).await == 0).then_some(())).await;
    }
    let blobs = "select count(*) from purged_session_blobs where removed_at is null";
    assert_eq!((ground.count(blobs).await, ground.count("select count(*) from operation").await), (500, 500));
    let took = worker.end();
    assert!(took < Duration::from_secs(5), "{took:?}");

    bucket.hang(false);
    let worker = Program::with_environment(&ground, &[], bucket.environment());
    wait_for("the blobs", async || (ground.count(blobs).await == 0).then_some(())).await;
    wait_for("the operations", async || {
        (ground.count("select count(*) from operation").await == 0).then_some(())
    })
    .await;
    worker.kill();
}

#[tokio::test]
async fn a_blob_that_a_frozen_process_writes_late_is_removed_too() {
    let ground = Ground::new().await;
    let mut clock = MovedClock::new(&ground).await;
    let program = Program::with_environment(&ground, &[], clock.environment());
    let owner = Caller::new(&program.base, KEY);
    let agent = owner.inline_agent().await;
    let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let session = format!("/sessions/{}", made["session"]["id"].as_str().expect("an id"));
    owner.post(&format!("{session}/archive"), json!({})).await.ok();
    assert_eq!(owner.delete(&session).await.status, 204);
    clock.advance(Duration::from_secs(120)).await;
    let removed = "select count(*) from purged_session_blobs where removed_at is not null";
    wait_for("the first removal", async || (ground.count(removed).await == 1).then_some(())).await;

    let mut superuser = ground.database.superuser().await;
    let (org, id): (uuid::Uuid, uuid::Uuid) =
        sqlx::query_as("select org_id, session_id from purged_session_blobs")
            .fetch_one(&mut superuser)
            .await
            .expect("a row");
    superuser.close().await.expect("a clean end");
    let directory = ground.data_dir.path().join("blobs").join(org.to_string()).join(id.to_string());
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("late"), "written by a process that continued").unwrap();
    clock.advance(Duration::from_secs(86_400)).await;
    let is_gone = async || {
        let rows = ground.count("select count(*) from purged_session_blobs").await;
        (rows == 0 && !directory.join("late").exists()).then_some(())
    };
    wait_for("the last removal", is_gone).await;
    program.kill();
}

#[tokio::test]
async fn one_worker_deletes_for_all_and_another_follows_it() {
    let ground = Ground::new().await;
    let first = ground.serve(&["--role=worker"]).await;
    let leaders = "select count(*) from leader";
    wait_for("leaders", async || (ground.count(leaders).await == 3).then_some(())).await;
    let holder = async |task: &str| {
        let mut superuser = ground.database.superuser().await;
        let row: (uuid::Uuid, f64) = sqlx::query_as(
            "select process_id, extract(epoch from held_until)::float8 from leader where task = $1",
        )
        .bind(task)
        .fetch_one(&mut superuser)
        .await
        .expect("a leader");
        superuser.close().await.expect("a clean end");
        row
    };
    let (leader, began) = holder("sweep").await;
    let other = ground.serve(&["--role=worker"]).await;
    // The first one renews its leadership twice, and the other one has tried each time.
    let renewed = async |after: f64| {
        wait_for("a renewal", async || Some(holder("sweep").await.1).filter(|until| *until > after)).await
    };
    let until = renewed(began).await;
    renewed(until).await;
    assert_eq!(holder("sweep").await.0, leader);
    first.stop().await;
    wait_for("the other one", async || (ground.count(leaders).await == 3).then_some(())).await;
    assert_ne!(holder("sweep").await.0, leader);
    ground
        .sql("insert into node (node_id, seen_at) values (gen_random_uuid(), now() - interval '31 days')")
        .await;
    let silent = "select count(*) from node where seen_at < now() - interval '1 day'";
    wait_for("a deletion", async || (ground.count(silent).await == 0).then_some(())).await;
    other.stop().await;
    assert_eq!(ground.count(leaders).await, 0, "a process that ends gives its tasks up");
}

#[tokio::test]
async fn the_page_about_retention_names_every_table() {
    let ground = Ground::new().await;
    let mut superuser = ground.database.superuser().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class
         where relnamespace = 'public'::regnamespace
           and relkind in ('r', 'p')
           and not relispartition
           and relname <> '_sqlx_migrations'",
    )
    .fetch_all(&mut superuser)
    .await
    .expect("tables");
    superuser.close().await.expect("a clean end");
    let page = pages::text("docs/retention.md");
    let (_, list) = page.split_once("| table | deleted |").expect("the list of tables");
    let named: BTreeSet<_> = list
        .lines()
        .filter_map(|line| line.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect();
    assert_eq!(named, tables.into_iter().collect());
}
