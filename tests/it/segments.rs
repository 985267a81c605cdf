//! Events of archived sessions in the blob store: the same log for every reader, whatever fails.

use std::{
    fs,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use sojourn::domain::SessionId;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::{
    service::{Caller, Ground, Service},
    wait::wait_for,
};

const STAY: &str = "--move-events-after-days=0";
const ROWS: &str = "select count(*) from event";
const SEGMENTS: &str = "select count(*) from log_segment";
const MOVED: &str = "select count(*) from session where events_moved_at is not null";

/// Makes the log of the idle session longer than a segment.
const LONGER: &str = "
    insert into event (org_id, session_id, seq, event_id, ts, type, level, actor, body, body_bytes)
    select org_id, session_id, head + n, gen_random_uuid(), updated_at, 'agent.thinking', 2, '{\"type\":\"agent\"}',
           format('{\"text\": \"Thought %s, \\u00e4\"}', n)::json, 30
    from session, generate_series(1, 12000) n;
    update session set head = head + 12000";

const ARCHIVED_LONG_AGO: &str = "update session set stopped_at = now() - interval '31 days'";

/// Creates a session with two turns, a body that is a blob of its own, and a registered tool.
async fn used_session(owner: &Caller) -> String {
    let id = owner.play(json!([{ "text": "First." }, { "text": "Second." }])).await;
    owner.settled(&id, 1).await;
    let tool = json!({ "name": "look_up", "tool_type": "custom", "description": "Looks up." });
    owner.post(&format!("/sessions/{id}/tools"), tool).await.ok();
    owner.post(&format!("/sessions/{id}/messages"), json!({ "text": "é".repeat(40_000) })).await.ok();
    owner.settled(&id, 2).await;
    id
}

async fn archive(owner: &Caller, id: &str) {
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
}

/// Creates an archived session, and lets a worker move its events.
async fn moved_session(ground: &Ground) -> (Service, String) {
    let service = ground.serve(&[]).await;
    let id = used_session(&service.owner()).await;
    archive(&service.owner(), &id).await;
    ground.sql(ARCHIVED_LONG_AGO).await;
    wait_for("the move", async || (ground.count(MOVED).await == 1).then_some(())).await;
    assert_eq!((ground.count(ROWS).await, ground.count(SEGMENTS).await), (0, 1));
    (service, id)
}

/// Status and text of an answer. The id of the request differs in errors only.
async fn text(caller: &Caller, path: &str) -> (u16, String) {
    let answer = caller.request(Method::GET, path).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a text"))
}

/// Text of a stream of the events after `after`, up to the frame of the last event.
async fn stream(caller: &Caller, session: &str, after: i64, head: i64) -> String {
    let path = format!("/sessions/{session}/stream?after={after}");
    let answer = caller.request(Method::GET, &path).send().await.expect("an answer");
    let (mut chunks, mut text) = (answer.bytes_stream(), Vec::new());
    let last = format!("\nid: {head}\n");
    let begin = b"\nid: ";
    loop {
        text.extend(chunks.next().await.expect("the stream continues").expect("a chunk"));
        let frame = text.windows(begin.len()).rposition(|part| part == begin).unwrap_or_default();
        if text[frame..].starts_with(last.as_bytes()) && text.ends_with(b"\n\n") {
            return String::from_utf8(text).expect("UTF-8");
        }
    }
}

/// Every way to read a log, with its answer.
async fn answers(caller: &Caller, session: &str, ids: &[String]) -> Vec<(String, (u16, String))> {
    let base = format!("/sessions/{session}");
    let head = caller.get(&base).await.ok()["head"].as_i64().expect("a head");
    let mut paths: Vec<_> = [
        "/events?limit=500",
        "/events?after=9980&limit=60",
        "/events?after=9998&limit=2",
        "/events?after=11900&limit=500",
        "/events?level=user&limit=500",
        "/events?type=turn.*&limit=2",
        "/events?type=turn.*&after=30",
        "/events?type=session.status_changed",
        "/events?type=nothing.of.this",
        "/messages",
        "/messages?after=3&limit=1",
        "/steps",
        "/turns",
        "/result",
        "/tools",
        "/sources",
        "/usage",
        "/export",
        "/events/evt_01m80jjgybes0ttvkffs625kj5",
    ]
    .iter()
    .map(|path| format!("{base}{path}"))
    .collect();
    for id in ids {
        paths.extend(["", "/content"].map(|end| format!("{base}/events/{id}{end}")));
    }
    let turns = caller.get(&format!("{base}/turns")).await.ok();
    let turn = turns["data"][0]["id"].as_str().expect("an id");
    paths.push(format!("{base}/events?turn_id={turn}"));
    let mut answers = Vec::new();
    for path in paths {
        let mut answer = text(caller, &path).await;
        if answer.0 == 404 {
            answer.1.clear();
        }
        answers.push((path, answer));
    }
    for after in [0, 9_990, head - 1] {
        let after = after.min(head - 1);
        answers.push((format!("stream after {after}"), (200, stream(caller, session, after, head).await)));
    }
    answers
}

/// Ids of some events: the first ones, and the last one.
async fn some_ids(caller: &Caller, session: &str) -> Vec<String> {
    let first = caller.get(&format!("/sessions/{session}/events?limit=25")).await.ok();
    let last = caller.get(&format!("/sessions/{session}/events?type=session.status_changed")).await.ok();
    let events = [&first, &last].map(|page| page["data"].as_array().expect("a page").clone()).concat();
    events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
}

/// The files of segments below a data directory.
fn objects(data_dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let below = |directory: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    for org in below(&data_dir.join("blobs")) {
        for session in below(&org) {
            found.extend(below(&session.join("segments")));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_the_blob_store_is_read_like_rows() {
    let ground = Ground::new().await;
    let before = ground.serve(&[STAY]).await;
    let owner = before.owner();
    let id = used_session(&owner).await;
    ground.sql(LONGER).await;
    archive(&owner, &id).await;
    let ids = some_ids(&owner, &id).await;
    let expected = answers(&owner, &id, &ids).await;
    let head = ground.count(ROWS).await;
    // A session that was archived just now stays as it is.
    let recent = used_session(&owner).await;
    archive(&owner, &recent).await;
    let recent_rows = ground.count(ROWS).await - head;
    before.stop().await;

    let uuid = id.parse::<SessionId>().expect("an id").uuid();
    ground.sql(&format!("{ARCHIVED_LONG_AGO} where session_id = '{uuid}'")).await;
    let after = ground.serve(&["--metrics-listen=127.0.0.1:0"]).await;
    wait_for("the move", async || (ground.count(MOVED).await == 1).then_some(())).await;
    assert_eq!((ground.count(ROWS).await, ground.count(SEGMENTS).await), (recent_rows, 2));
    assert_eq!(objects(ground.data_dir.path()).len(), 2);
    let metrics = after.metrics().await;
    assert_eq!(metrics["sojourn_events_moved_total"], head as f64);
    assert_eq!(metrics["sojourn_segments_stored_total"], 2.0);
    assert!(metrics["sojourn_segment_bytes_total"] > 10_000.0, "{metrics:#?}");
    assert_eq!(metrics["sojourn_events_to_move_age_seconds"], 0.0);

    let found = answers(&after.owner(), &id, &ids).await;
    for ((path, expected), (_, found)) in expected.iter().zip(&found) {
        let start = |text: &str| text.chars().take(600).collect::<String>();
        assert!(
            expected == found,
            "{path}: {} {}\ninstead of {} {}",
            found.0,
            start(&found.1),
            expected.0,
            start(&expected.1)
        );
    }
    let (_, (_, export)) = found.iter().find(|(path, _)| path.ends_with("/export")).expect("an export");
    assert_eq!(export.lines().count() as i64, head + 2, "a head, the events, a tail");
    after.stop().await;
}

#[tokio::test]
async fn a_crash_after_each_step_of_the_move_is_healed() {
    let ground = Ground::new().await;
    let service = ground.serve(&[STAY]).await;
    let id = used_session(&service.owner()).await;
    archive(&service.owner(), &id).await;
    let ids = some_ids(&service.owner(), &id).await;
    let expected = answers(&service.owner(), &id, &ids).await;
    service.stop().await;
    let head = ground.count(ROWS).await;
    ground.sql(ARCHIVED_LONG_AGO).await;

    // The object is stored, and the transaction does not commit.
    ground
        .sql(
            "create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
             create trigger refuse before insert on log_segment for each row execute function refuse()",
        )
        .await;
    let first = ground.serve(&["--metrics-listen=127.0.0.1:0"]).await;
    let failed = async || {
        let metrics = first.metrics().await;
        (metrics.get("sojourn_segment_failures_total").copied().unwrap_or_default() > 0.0).then_some(())
    };
    wait_for("a failed move", failed).await;
    assert!(first.metrics().await["sojourn_events_to_move_age_seconds"] > 80_000.0);
    first.stop().await;
    assert_eq!((ground.count(ROWS).await, ground.count(SEGMENTS).await), (head, 0));
    assert_eq!(objects(ground.data_dir.path()).len(), 1);

    // The segment exists, its rows are not deleted, and its object is lost: rows win.
    let mut superuser = ground.database.superuser().await;
    let function: String = sqlx::query_scalar(
        "select pg_get_functiondef(oid) from pg_proc where proname = 'sojourn_delete_moved_events'",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("the function");
    superuser.close().await.expect("a clean end");
    ground
        .sql(
            "drop trigger refuse on log_segment;
             create or replace function sojourn_delete_moved_events(
                 moved_org uuid, moved_session uuid, first_seq bigint, last_seq bigint, object_digest bytea
             ) returns bigint language sql as $$ select 0::bigint $$",
        )
        .await;
    let second = ground.serve(&[]).await;
    wait_for("a segment", async || (ground.count(SEGMENTS).await == 1).then_some(())).await;
    second.stop().await;
    assert_eq!((ground.count(ROWS).await, ground.count(MOVED).await), (head, 0));
    let [object] = &objects(ground.data_dir.path())[..] else { panic!("one object") };
    fs::remove_file(object).unwrap();
    let api = ground.serve(&["--role=api", STAY]).await;
    assert!(answers(&api.owner(), &id, &ids).await == expected, "rows win");
    api.stop().await;

    // The next worker writes the object again and deletes the rows.
    ground.sql(&function).await;
    let third = ground.serve(&[]).await;
    wait_for("the move", async || (ground.count(MOVED).await == 1).then_some(())).await;
    assert_eq!((ground.count(ROWS).await, ground.count(SEGMENTS).await), (0, 1));
    assert!(object.exists());
    assert!(answers(&third.owner(), &id, &ids).await == expected, "the segment");
    third.stop().await;
}

#[tokio::test]
async fn a_lost_or_damaged_segment_is_an_error_and_no_shorter_log() {
    let ground = Ground::new().await;
    let (service, id) = moved_session(&ground).await;
    let ids = some_ids(&service.owner(), &id).await;
    let expected = answers(&service.owner(), &id, &ids).await;
    service.stop().await;
    let [object] = &objects(ground.data_dir.path())[..] else { panic!("one object") };
    let content = fs::read(object).unwrap();
    let mut damaged = content.clone();
    damaged[content.len() / 2] ^= 1;

    for bytes in [None, Some(damaged)] {
        match bytes {
            None => fs::remove_file(object).unwrap(),
            Some(bytes) => fs::write(object, bytes).unwrap(),
        }
        let service = ground.serve(&["--metrics-listen=127.0.0.1:0"]).await;
        let owner = service.owner();
        let event = format!("/events/{}", ids[0]);
        for path in ["/events", "/events?type=turn.*", "/messages", "/steps", "/result", "/tools", &event] {
            let error = owner.get(&format!("/sessions/{id}{path}")).await.error(500);
            assert_eq!(error["type"], "internal");
            let message = error["message"].as_str().expect("a text");
            assert!(message.starts_with("events 1 to ") && message.contains("missing"), "{message}");
        }
        let none = owner.get(&format!("/sessions/{id}/events?type=nothing.of.this")).await.ok();
        assert_eq!(none["data"], json!([]), "no object is read for a type that it does not have");
        let export = owner.request(Method::GET, &format!("/sessions/{id}/export")).send().await;
        // The connection may end before the head of the response was sent.
        let export = match export {
            Ok(answer) => answer.text().await,
            Err(error) => Err(error),
        };
        assert!(export.is_err(), "an export that looks complete: {export:?}");
        let lost = service.metrics().await["sojourn_blobs_lost_total{kind=\"segment\"}"];
        assert!(lost >= 7.0, "{lost}");
        service.stop().await;
    }
    fs::write(object, content).unwrap();
    let service = ground.serve(&[]).await;
    assert!(answers(&service.owner(), &id, &ids).await == expected);
    service.stop().await;
}

#[tokio::test]
async fn a_deleted_session_or_organization_leaves_no_segment() {
    let ground = Ground::new().await;
    let (service, id) = moved_session(&ground).await;
    assert_eq!(objects(ground.data_dir.path()).len(), 1);
    assert_eq!(service.owner().delete(&format!("/sessions/{id}")).await.status, 204);
    let is_gone = async || {
        (objects(ground.data_dir.path()).is_empty() && ground.count(SEGMENTS).await == 0).then_some(())
    };
    wait_for("the removal of the object", is_gone).await;
    service.stop().await;

    const OPERATOR: &str = "an operator key that is long enough";
    let service = ground.serve(&[&format!("--operator-key={OPERATOR}")]).await;
    let id = used_session(&service.owner()).await;
    archive(&service.owner(), &id).await;
    ground.sql(ARCHIVED_LONG_AGO).await;
    wait_for("the move", async || (ground.count(SEGMENTS).await == 1).then_some(())).await;
    let org = service.owner().get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
    let path = format!("/admin/organizations/{org}?confirm={org}");
    assert_eq!(service.caller(OPERATOR).delete(&path).await.status, 204);
    let sessions = "select count(*) from session";
    wait_for("the purge", async || (ground.count(sessions).await == 0).then_some(())).await;
    ground.sql("update purged_session_blobs set created_at = created_at - interval '2 minutes'").await;
    wait_for("the removal of the object", is_gone).await;
    service.stop().await;
}

/// Calls the owner's function for a range of the only session as this role. Returns the message of the error.
async fn delete_rows(url: &str, from: i64, to: i64, digest: &str) -> Result<i64, String> {
    let mut role = PgConnection::connect(url).await.expect("a connection");
    let sql = format!(
        "select sojourn_delete_moved_events(org_id, session_id, {from}, {to}, {digest}) from session limit 1"
    );
    let deleted = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut role).await;
    role.close().await.expect("a clean end");
    deleted.map_err(|error| {
        error.as_database_error().map_or(error.to_string(), |error| error.message().to_owned())
    })
}

#[tokio::test]
async fn only_complete_rows_of_a_segment_of_an_archived_session_are_deleted() {
    let ground = Ground::new().await;
    let service = ground.serve(&[STAY]).await;
    let id = used_session(&service.owner()).await;
    let system = ground.urls().system;
    let refused = async |from: i64, to: i64, digest: &str, expected: &str| {
        let error = delete_rows(&system, from, to, digest).await.expect_err("a refusal");
        assert!(error.contains(expected), "{error}");
    };
    let digest = "sha256('a')";
    refused(1, 3, digest, "is not archived").await;
    archive(&service.owner(), &id).await;
    let head = ground.count(ROWS).await;
    refused(1, 3, digest, "no such segment").await;
    let segment = |from: i64, to: i64| {
        format!(
            "insert into log_segment (org_id, session_id, from_seq, to_seq, digest, bytes, types)
             select org_id, session_id, {from}, {to}, sha256('a'), 1, '{{}}' from session"
        )
    };
    ground.sql(&segment(4, 5)).await;
    refused(4, 5, "sha256('b')", "no such segment").await;
    refused(4, 5, digest, "does not follow").await;
    ground.sql(&segment(1, 3)).await;
    refused(4, 5, digest, "earlier events are still rows").await;
    ground.sql(&segment(6, head + 1)).await;
    assert_eq!(ground.count(ROWS).await, head);
    // The role of requests sees no session without an organization, and may not call it for one.
    let mut app = PgConnection::connect(&ground.urls().app).await.expect("a connection");
    let call = "select sojourn_delete_moved_events(gen_random_uuid(), gen_random_uuid(), 1, 3, sha256('a'))";
    let error = sqlx::query(call).execute(&mut app).await.expect_err("a refusal");
    assert!(error.to_string().contains("only the service itself"), "{error}");
    app.close().await.expect("a clean end");

    assert_eq!(delete_rows(&system, 1, 3, digest).await, Ok(3));
    assert_eq!(delete_rows(&system, 1, 3, digest).await, Ok(0), "a repetition deletes nothing");
    assert_eq!(delete_rows(&system, 4, 5, digest).await, Ok(2));
    refused(6, head + 1, digest, "not complete").await;
    assert_eq!(ground.count(ROWS).await, head - 5);
    service.stop().await;
}

#[tokio::test]
async fn a_segment_is_of_one_organization_only() {
    let ground = Ground::new().await;
    let (service, id) = moved_session(&ground).await;
    let other = ground.organization("other").await;
    let stranger = service.caller(&other);
    let event = some_ids(&service.owner(), &id).await.remove(0);
    for path in
        ["/events", "/messages", "/result", "/steps", "/tools", "/export", &format!("/events/{event}")]
    {
        stranger.get(&format!("/sessions/{id}{path}")).await.error(404);
    }
    // The rows of the table too, for a query without a condition.
    let mut app = PgConnection::connect(&ground.urls().app).await.expect("a connection");
    for (org, expected) in [("gen_random_uuid()", 0), ("(select org_id from log_segment)", 1)] {
        let mut superuser = ground.database.superuser().await;
        let org: String = sqlx::query_scalar(AssertSqlSafe(format!("select {org}::text")))
            .fetch_one(&mut superuser)
            .await
            .expect("an id");
        superuser.close().await.expect("a clean end");
        sqlx::query("select set_config('sojourn.org', $1, false)")
            .bind(org)
            .execute(&mut app)
            .await
            .expect("a setting");
        let seen: i64 = sqlx::query_scalar(SEGMENTS).fetch_one(&mut app).await.expect("a count");
        assert_eq!(seen, expected);
    }
    app.close().await.expect("a clean end");
    service.stop().await;
}

#[tokio::test]
async fn nothing_moves_while_a_process_lives_that_does_not_read_segments() {
    let ground = Ground::new().await;
    let service = ground.serve(&[STAY]).await;
    let id = used_session(&service.owner()).await;
    archive(&service.owner(), &id).await;
    service.stop().await;
    ground.sql(ARCHIVED_LONG_AGO).await;
    // A process of the previous version.
    ground
        .sql(
            "insert into process (process_id, is_api, free_slots, seen_at)
             values (gen_random_uuid(), true, 0, now() + interval '1 hour')",
        )
        .await;
    let service = ground.serve(&[]).await;
    let renewed = async |than: i64| {
        let until = "select coalesce(max(extract(epoch from held_until)::bigint), 0) from leader
                     where task = 'move_events'";
        let look = async || Some(ground.count(until).await).filter(|until| *until > than);
        wait_for("a look for sessions", look).await
    };
    // It has looked once when it looks again.
    let first = renewed(0).await;
    renewed(first).await;
    assert_eq!((ground.count(MOVED).await, ground.count(SEGMENTS).await), (0, 0));
    ground.sql("delete from process where not reads_segments").await;
    wait_for("the move", async || (ground.count(MOVED).await == 1).then_some(())).await;
    service.stop().await;
}

#[tokio::test]
async fn one_role_that_owns_and_serves_moves_events_too() {
    let ground = Ground::new().await;
    let service = ground.serve_as_one_role().await;
    let owner = service.owner();
    let id = used_session(&owner).await;
    archive(&owner, &id).await;
    let expected: Value = owner.get(&format!("/sessions/{id}/events?limit=500")).await.ok();
    ground.sql(ARCHIVED_LONG_AGO).await;
    wait_for("the move", async || (ground.count(MOVED).await == 1).then_some(())).await;
    assert_eq!(ground.count(ROWS).await, 0);
    assert_eq!(owner.get(&format!("/sessions/{id}/events?limit=500")).await.ok(), expected);
    service.stop().await;
}
