//! `sojourn admin`: organizations suspended and destroyed, the master key rotated.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::json;
use sojourn::domain::OrgId;
use tokio::time::timeout;

use crate::support::{
    service::{Caller, Ground},
    wait::{poll, wait_for},
};

const OLD: &str = "a passphrase that is long enough for tests";
const NEW: &str = "another passphrase that is long enough for tests";

fn admin(ground: &Ground, words: &[&str], keys: &[(&str, &str)]) -> Output {
    let urls = ground.urls();
    Command::new(env!("CARGO_BIN_EXE_sojourn"))
        .arg("admin")
        .args(words)
        .args([format!("--data-dir={}", ground.data_dir.path().display())])
        .args([format!("--database-url={}", urls.app), format!("--owner-database-url={}", urls.owner)])
        .args([format!("--system-database-url={}", urls.system)])
        .envs(keys.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

pub fn run(ground: &Ground, words: &[&str]) -> String {
    let output = admin(ground, words, &[("SOJOURN_MASTER_KEY", OLD)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Waits until requests are answered with `status`. A change by an administrator takes effect within
/// 5 seconds.
async fn until(caller: &Caller, status: u16) -> serde_json::Value {
    let answered = async || Some(caller.get("/sessions").await).filter(|answer| answer.status == status);
    let Ok(answer) = timeout(Duration::from_secs(5), poll(answered)).await else {
        panic!("requests are not answered with {status} within 5 s")
    };
    answer.body
}

#[tokio::test]
async fn a_suspended_organization_has_its_turns_refused_until_it_is_resumed() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let organization = owner.get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
    let session = owner.play(json!([{ "text": "Never." }])).await;
    run(&ground, &["suspend-org", &organization]);
    assert_eq!(until(&owner, 403).await["error"]["code"], "organization_suspended");
    assert!(run(&ground, &["list-orgs"]).contains(&format!("{organization} suspended")));
    let worker = ground.serve(&["--role=worker"]).await;
    let ended = "select count(*) from turn where yield_reason is not null";
    wait_for("the end of its turn", async || (ground.count(ended).await > 0).then_some(())).await;
    run(&ground, &["resume-org", &organization]);
    until(&owner, 200).await;
    let log = owner.settled(&session, 1).await;
    let types: Vec<_> = log.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(types, ["session.created", "user.message", "session.rejected", "turn.completed"]);
    assert_eq!(log[2]["body"]["reason"], "organization_suspended");
    let path = format!("/sessions/{session}");
    let refused = owner.get(&path).await.ok();
    assert_eq!((&refused["status"], &refused["exit_status"]), (&json!("idle"), &json!("canceled")));
    let again = json!({ "script": [{ "text": "Now." }] }).to_string();
    owner.post(&format!("{path}/messages"), json!({ "text": again })).await.ok();
    owner.settled(&session, 2).await;
    assert_eq!(owner.get(&path).await.ok()["exit_status"], "completed");
    worker.stop().await;
    service.stop().await;
}

#[tokio::test]
async fn a_deleted_organization_leaves_its_audit_log_and_nothing_else() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let stranger = service.caller(&ground.organization("strangers").await);
    let id = stranger.get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
    let body = json!({ "input": { "script": [{ "text": "Gone." }] }, "agent": stranger.inline_agent().await,
        "webhook": "http://127.0.0.1:9/hook" });
    stranger.post("/sessions", body).await.ok();
    stranger.post("/credentials", json!({ "key": "sk-1" })).await.ok();
    stranger.post("/webhooks", json!({ "url": "http://127.0.0.1:9/hook" })).await.ok();
    let keep = service.owner().play(json!([{ "text": "Kept." }])).await;
    let wrong = admin(
        &ground,
        &["delete-org", &id, "--confirm", "org_01jd0000000000000000000000"],
        &[("SOJOURN_MASTER_KEY", OLD)],
    );
    assert!(!wrong.status.success(), "the id has to be given twice");
    stranger.get("/sessions").await.ok();
    run(&ground, &["delete-org", &id, "--confirm", &id]);
    until(&stranger, 401).await;
    let mut superuser = ground.database.superuser().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attname = 'org_id'
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
         order by 1",
    )
    .fetch_all(&mut superuser)
    .await
    .expect("tables");
    let org = id.parse::<OrgId>().expect("an id").uuid();
    let mut left = Vec::new();
    for table in tables {
        let sql = format!("select count(*) from {table} where org_id = $1");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(org)
            .fetch_one(&mut superuser)
            .await
            .expect("a count");
        if count > 0 {
            left.push(table);
        }
    }
    assert_eq!(left, ["audit", "org", "purged_session_blobs"]);
    let key: Vec<u8> = sqlx::query_scalar("select data_key from org where org_id = $1")
        .bind(org)
        .fetch_one(&mut superuser)
        .await
        .expect("the row");
    assert!(key.is_empty(), "the key is erased");
    service.owner().get(&format!("/sessions/{keep}")).await.ok();
    service.stop().await;
}

/// Number of blobs of an organization.
fn blobs(ground: &Ground, org: OrgId) -> usize {
    fn files(at: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(at) else { return 0 };
        entries.flatten().map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
    }
    files(&ground.data_dir.path().join("blobs").join(org.uuid().to_string()))
}

#[tokio::test]
async fn a_deleted_organization_leaves_no_blob() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let stranger = service.caller(&ground.organization("strangers").await);
    let mut orgs = Vec::new();
    for caller in [&service.owner(), &stranger] {
        let id = caller.get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
        for _ in 0..2 {
            let long = "x".repeat(100_000);
            let agent = caller.inline_agent().await;
            caller.post("/sessions", json!({ "agent": agent, "input": long })).await.ok();
        }
        orgs.push(id);
    }
    let [kept, gone] = [0, 1].map(|at: usize| orgs[at].parse::<OrgId>().expect("an id"));
    wait_for("the blobs", async || ((blobs(&ground, kept), blobs(&ground, gone)) == (2, 2)).then_some(()))
        .await;
    run(&ground, &["delete-org", &orgs[1], "--confirm", &orgs[1]]);
    service.stop().await;
    // A worker that does not know yet may write a blob for a minute; after that they are removed.
    ground.sql("update purged_session_blobs set created_at = now() - interval '1 hour'").await;
    let service = ground.serve(&[]).await;
    let rows = "select count(*) from purged_session_blobs where removed_at is null";
    wait_for("the removal of its blobs", async || (ground.count(rows).await == 0).then_some(())).await;
    assert_eq!((blobs(&ground, gone), blobs(&ground, kept)), (0, 2));
    service.stop().await;
}

#[tokio::test]
async fn what_is_written_just_after_a_deletion_goes_too() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let stranger = service.caller(&ground.organization("strangers").await);
    let id = stranger.get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
    run(&ground, &["delete-org", &id, "--confirm", &id]);
    let mut superuser = ground.database.superuser().await;
    let org = id.parse::<OrgId>().expect("an id").uuid();
    // As of a process that still has the key cached, or of a request in progress.
    let sql = "insert into idempotency (org_id, scope, key, fingerprint) values ($1, 'header', 'late', '')";
    sqlx::query(sql).bind(org).execute(&mut superuser).await.expect("a row");
    let left = format!("select count(*) from idempotency where org_id = '{org}'");
    wait_for("the removal of the late row", async || (ground.count(&left).await == 0).then_some(())).await;
    // Once no request can be in progress, this was the last purge.
    let sql = "update org set deleted_at = now() - interval '1 hour' where org_id = $1";
    sqlx::query(sql).bind(org).execute(&mut superuser).await.expect("an update");
    let purged = format!("select count(*) from org where org_id = '{org}' and purged_at is not null");
    wait_for("the last purge", async || (ground.count(&purged).await == 1).then_some(())).await;
    service.stop().await;
}

#[tokio::test]
async fn the_master_key_is_replaced_while_the_service_runs() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let trigger = json!({ "url": "http://127.0.0.1:9/hook" });
    owner.post("/webhooks", trigger.clone()).await.ok();
    service.stop().await;
    let (new, before) = (format!("--master-key={NEW}"), format!("--master-key-before={OLD}"));
    let both = ground.serve(&["--role=api", &new, &before]).await;
    both.owner().post("/webhooks", trigger.clone()).await.ok();
    let output = admin(
        &ground,
        &["rotate-master-key"],
        &[("SOJOURN_MASTER_KEY", NEW), ("SOJOURN_MASTER_KEY_BEFORE", OLD)],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 organizations re-encrypted"));
    both.owner().post("/webhooks", trigger.clone()).await.ok();
    both.stop().await;
    // The old key decrypts nothing any more, the new one everything, including API keys.
    let output = admin(&ground, &["list-orgs"], &[("SOJOURN_MASTER_KEY", OLD)]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("another SOJOURN_MASTER_KEY"));
    let alone = ground.serve(&["--role=api", &new]).await;
    assert_eq!(alone.owner().get("/webhooks").await.ok()["data"].as_array().map(Vec::len), Some(3));
    alone.owner().post("/webhooks", trigger).await.ok();
    alone.stop().await;
}
