//! Deletion of an organization: done for callers at once, and for its rows in steps that survive the process.

use std::{fs, time::Duration};

use serde_json::json;
use sojourn::{base::seal::sha256, domain::OrgId, store::object};

use crate::support::{clock::MovedClock, service::Ground, wait::wait_for};

const OPERATOR: &str = "an operator key that is long enough";

/// Events of the organization that is deleted.
const EVENTS: i64 = 60_000;

const ROWS_LEFT: &str = "select (select count(*) from event) + (select count(*) from session)
                         + (select count(*) from agent) + (select count(*) from usage_hour)
                         + (select count(*) from delivery) + (select count(*) from destination)
                         + (select count(*) from snapshot) + (select count(*) from snapshot_pack)
                         + (select count(*) from object_ref)";

/// A snapshot of each session, whose pack is in an object.
const SNAPSHOTS: &str = "
    insert into object (org_id, digest, bytes, kept_until)
    select distinct org_id, sha256('a'), 1, now() + interval '1 day' from session;
    insert into snapshot_pack (org_id, session_id, number, digest, bytes)
    select org_id, session_id, 0, sha256('a'), 1 from session;
    insert into snapshot (
        org_id, session_id, seq, snapshot_id, root_pack, root_offset, root_bytes, files, bytes
    )
    select org_id, session_id, 1, repeat('0', 32), 0, 0, 1, 0, 0 from session";

#[tokio::test]
async fn a_deletion_of_many_rows_is_answered_at_once_and_goes_on_in_steps() {
    let ground = Ground::new().await;
    let key = format!("--operator-key={OPERATOR}");
    let api = ground.serve(&["--role=api", &key]).await;
    let (owner, operator) = (api.owner(), api.caller(OPERATOR));
    owner.post("/webhooks", json!({ "url": "http://127.0.0.1:9/hook" })).await.ok();
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent, "input": "Go." })).await.ok();
    ground
        .sql(&format!(
            "insert into event (org_id, session_id, seq, event_id, ts, type, level, actor, body, body_bytes)
             select org_id, session_id, 1000 + n, gen_random_uuid(), now(), 'session.updated', 2, '{{}}', '{{}}', 2
             from session, generate_series(1, {EVENTS}) n"
        ))
        .await;
    let org = owner.get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
    ground.sql(SNAPSHOTS).await;
    let key = object::key(org.parse::<OrgId>().expect("an id"), &sha256(b"a"));
    let blob = ground.data_dir.path().join("blobs").join(key);
    fs::create_dir_all(blob.parent().expect("a directory")).unwrap();
    fs::write(&blob, "a").unwrap();
    let path = format!("/admin/organizations/{org}");
    assert_eq!(operator.delete(&format!("{path}?confirm={org}")).await.status, 204);
    assert_eq!(operator.get(&path).await.ok()["state"], "deleted");
    assert!(ground.count(ROWS_LEFT).await > EVENTS, "the rows are deleted later");
    assert_eq!(ground.count("select count(*) from job").await, 0, "nothing runs for it any more");
    assert_eq!(ground.count("select count(*) from api_key").await, 0);
    api.stop().await;

    // The first worker ends while it deletes.
    let first = ground.serve(&["--role=worker"]).await;
    let some_are_gone = async || (ground.count("select count(*) from event").await < EVENTS).then_some(());
    wait_for("some events are deleted", some_are_gone).await;
    first.stop().await;
    let mut clock = MovedClock::new(&ground).await;
    let second = ground.serve(&["--role=worker"]).await;
    wait_for("every row is deleted", async || (ground.count(ROWS_LEFT).await == 0).then_some(())).await;
    assert_eq!(ground.count("select count(*) from purged_session_blobs").await, 1);
    assert!(ground.count("select count(*) from audit").await > 0, "the audit log stays");
    // Its row stays until the blob is deleted.
    let objects = "select count(*) from object";
    wait_for("the object", async || (ground.count(objects).await == 0).then_some(())).await;
    assert!(!blob.exists());
    // A write that was in progress; the last purge is a minute after the deletion.
    ground
        .sql(
            "insert into environment (org_id, environment_id, name, config, secrets, sealed_secrets)
              select org_id, gen_random_uuid(), 'late', '{}', '[]', '' from org where deleted_at is not null",
        )
        .await;
    wait_for("the late row", async || {
        (ground.count("select count(*) from environment").await == 0).then_some(())
    })
    .await;
    clock.advance(Duration::from_secs(120)).await;
    wait_for("the last purge", async || {
        (ground.count("select count(*) from org where purged_at is not null").await == 1).then_some(())
    })
    .await;
    second.stop().await;
}
