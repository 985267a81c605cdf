//! No session stays stuck: lost work is found, waiting states are reported, unavailable resources are
//! retried.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection};

use crate::support::service::Ground;

async fn sql(ground: &Ground, statement: &str) {
    let mut superuser = ground.database.superuser().await;
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut superuser).await.expect(statement);
    superuser.close().await.expect("a clean end");
}

fn of<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|event| event["type"] == kind).collect()
}

#[tokio::test]
async fn a_session_whose_job_was_lost_is_found_and_runs() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let session = api.owner().play(json!([{ "text": "Found." }])).await;
    sql(&ground, "delete from job").await;
    let worker = ground.serve(&["--role=worker"]).await;
    let log = api.owner().settled(&session, 1).await;
    assert_eq!(of(&log, "turn.completed")[0]["body"]["yield_reason"], "completed");
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn nothing_is_found_for_a_deleted_organization() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let stranger = api.caller(&ground.organization("strangers").await);
    for owner in [&stranger, &api.owner()] {
        owner.play(json!([{ "text": "a" }])).await;
    }
    let org = stranger.get("/organization").await.ok()["id"].as_str().expect("an id").to_owned();
    let org: sojourn::domain::OrgId = org.parse().expect("an id");
    let store = ground.store(2);
    store.delete_org(org).await.expect("deleted");
    sql(&ground, "delete from job").await;
    assert_eq!(store.enqueue_stuck(100).await.expect("a search"), 1, "only the session of the other one");
    api.stop().await;
}

#[tokio::test]
async fn only_a_stuck_session_is_listed_as_overdue() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api", "--metrics-listen=127.0.0.1:0"]).await;
    let owner = api.owner();
    let (stuck, waiting) =
        (owner.play(json!([{ "text": "a" }])).await, owner.play(json!([{ "text": "b" }])).await);
    sql(&ground, "update session set updated_at = now() - interval '1 minute'").await;
    sql(&ground, "update job set ready_at = now() - interval '1 minute'").await;
    let listed = async |overdue: bool| -> Vec<String> {
        let page = owner.get(&format!("/sessions?overdue={overdue}")).await.ok();
        let ids = page["data"].as_array().expect("a list").iter();
        ids.map(|session| session["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(listed(true).await, Vec::<String>::new(), "both are queued");
    let metrics = api.metrics().await;
    assert_eq!(metrics["sojourn_sessions_overdue"], 0.0);
    assert_eq!(metrics["sojourn_turns{state=\"queued\"}"], 2.0);
    assert_eq!((metrics["sojourn_jobs_ready"], metrics["sojourn_jobs_held"]), (2.0, 0.0));
    assert!(metrics["sojourn_jobs_ready_age_seconds"] >= 60.0, "{metrics:?}");
    assert_eq!(metrics["sojourn_maintenance_jobs_ready"], 0.0);
    // A sandbox that has been idle for too long is no turn that waits.
    let idle = "insert into job (org_id, session_id, kind, ready_at, is_scheduled)
                select org_id, session_id, 'idle', now() - interval '10 minutes', true from session limit 1";
    sql(&ground, idle).await;
    let metrics = api.metrics().await;
    assert_eq!((metrics["sojourn_jobs_ready"], metrics["sojourn_maintenance_jobs_ready"]), (2.0, 1.0));
    let ages = ["sojourn_jobs_ready_age_seconds", "sojourn_maintenance_jobs_ready_age_seconds"];
    let [turns, maintenance] = ages.map(|name| metrics[name]);
    assert!(turns < 600.0 && maintenance >= 600.0, "{metrics:?}");
    sql(&ground, "delete from job where kind = 'idle'").await;
    // A holder whose lease expired long ago, without a takeover.
    let id: sojourn::domain::SessionId = stuck.parse().expect("an id");
    let held = format!("update job set worker_id = gen_random_uuid() where session_id = '{}'", id.uuid());
    sql(&ground, &held).await;
    assert_eq!(listed(true).await, [stuck]);
    assert_eq!(listed(false).await, [waiting]);
    let metrics = api.metrics().await;
    assert_eq!(metrics["sojourn_sessions_overdue"], 1.0);
    assert_eq!(metrics["sojourn_jobs_held"], 1.0);
    assert_eq!(metrics["sojourn_database_up"], 1.0);
    owner.get("/sessions?overdue=perhaps").await.error(400);
    sql(&ground, "update org set suspended_at = now()").await;
    assert_eq!(
        api.metrics().await["sojourn_sessions_overdue"],
        0.0,
        "a suspended session is not expected to progress"
    );
    api.stop().await;
}

#[tokio::test]
async fn a_turn_that_waits_for_its_provider_says_until_when_and_can_be_canceled() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let fault = json!({ "kind": "rate_limited", "retry_after_ms": 600_000 });
    let session = owner.play(json!([{ "text": "Never.", "fault": fault }])).await;
    let view = owner.until(&format!("/sessions/{session}"), |view| view["phase"] == "retrying").await;
    assert_eq!(view["status"], "running");
    assert!(view["next_attempt_at"].is_string(), "{view}");
    let listed = owner.get("/sessions?status=running").await.ok();
    assert_eq!(listed["data"][0]["phase"], "retrying");
    owner.post(&format!("/sessions/{session}/cancel"), json!({})).await.ok();
    let log = owner.settled(&session, 1).await;
    assert_eq!(of(&log, "turn.completed")[0]["body"]["yield_reason"], "canceled");
    let view = owner.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(view["phase"], Value::Null);
    service.stop().await;
}

#[tokio::test]
async fn a_turn_without_a_sandbox_is_tried_again_from_scratch_and_then_fails() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--sandbox-runtime=no-such-runtime"]).await;
    let owner = service.owner();
    let call = json!({ "tool": "bash", "input": { "command": "true" } });
    let session = owner.play(json!([{ "tools": [call] }, { "text": "Done." }])).await;
    let log = owner.settled(&session, 1).await;
    let tries = of(&log, "error.runtime");
    assert!(tries.len() > 1 && tries.iter().all(|event| event["body"]["retry_at"].is_string()), "{tries:?}");
    let result = of(&log, "tool.result");
    assert_eq!((result.len(), &result[0]["body"]["outcome"]), (1, &json!("not_run")));
    let end = &of(&log, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "sandbox_unavailable");
    let view = owner.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(view["status"], "failed");
    service.stop().await;
}
