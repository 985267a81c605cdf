//! Kills of callers' commands that do not run yet: in the queue, and between their claim and their start.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Scene, assert_sound, log, of};
use crate::support::{
    service::{Answer, Caller, send},
    wait::wait_for,
};

/// A kill follows its command after each of these times, in which the command is claimed and started.
const AFTER_MS: [u64; 16] = [0, 0, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100, 120, 150, 200, 300];

/// A session without an agent: a sandbox with a log.
async fn empty(caller: &Caller) -> String {
    let created = caller.post("/sessions", json!({})).await.ok();
    created["session"]["id"].as_str().expect("an id").to_owned()
}

async fn post_at_once(caller: &Caller, path: &str, body: Value) -> Answer {
    send(caller.request(Method::POST, path).header("Prefer", "wait=0").json(&body)).await
}

/// Requests a command; returns its path.
async fn begin(caller: &Caller, session: &str, command: &str) -> String {
    let path = format!("/sessions/{session}/exec");
    let asked = post_at_once(caller, &path, json!({ "command": command })).await.ok();
    format!("{path}/{}", asked["id"].as_str().expect("an id"))
}

fn is_over(exec: &Value) -> bool {
    exec["state"] != "queued" && exec["state"] != "running"
}

/// The ends of a command in the log.
fn ends_of<'a>(log: &'a [Value], exec: &Value) -> Vec<&'a Value> {
    let mut ends = of(log, "exec.completed");
    ends.retain(|event| event["body"]["exec_id"] == exec["id"]);
    ends
}

#[tokio::test]
async fn a_command_that_is_killed_in_the_queue_never_runs() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = empty(owner).await;
    let path = begin(owner, &id, "touch ran").await;
    let next = begin(owner, &id, "ls").await;
    // Nobody serves it, and it ends.
    let kill = format!("{path}/kill");
    let killed = owner.post(&kill, json!({})).await;
    assert_eq!(killed.status, 200);
    let killed = killed.ok();
    assert_eq!(
        (&killed["state"], &killed["cause"], &killed["exit_code"]),
        (&json!("completed"), &json!("killed"), &json!(143))
    );
    assert_eq!((&killed["started_at"], &killed["error"]), (&Value::Null, &Value::Null));
    assert!(killed["completed_at"].is_string(), "{killed}");
    assert_eq!(owner.post(&kill, json!({})).await.ok(), killed, "it is over already");

    let worker = scene.ground.serve(&["--role=worker"]).await;
    let ran = owner.until(&next, is_over).await;
    assert_eq!((&ran["state"], &ran["stdout"]), (&json!("completed"), &json!("")));
    let is_recorded = async || (!ends_of(&log(owner, &id).await, &killed).is_empty()).then_some(());
    wait_for("its end in the log", is_recorded).await;
    worker.stop().await;

    // As left by a worker that died after it had recorded the end: the kill is open.
    let left = "update operation set answer = null, completed_at = null where request ->> 'kind' = 'kill';
                insert into job (org_id, session_id, kind, ready_at)
                select org_id, session_id, 'operation', now() from session
                on conflict do nothing";
    scene.ground.sql(left).await;
    let worker = scene.ground.serve(&["--role=worker"]).await;
    let open = "select count(*) from operation where completed_at is null";
    wait_for("the kill", async || (scene.ground.count(open).await == 0).then_some(())).await;
    let log = log(owner, &id).await;
    assert_sound(&log);
    let ends = ends_of(&log, &killed);
    assert_eq!(ends.len(), 1, "{ends:?}");
    let body = &ends[0]["body"];
    assert_eq!(
        (&body["cause"], &body["exit_code"], &body["command"]),
        (&json!("killed"), &json!(143), &json!("touch ran"))
    );
    assert_eq!((of(&log, "exec.started").len(), of(&log, "exec.completed").len()), (2, 2));
    assert_eq!(owner.get(&path).await.ok(), killed);
    worker.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_kill_between_the_claim_of_a_command_and_its_start_is_not_lost() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = empty(owner).await;
    let worker = scene.ground.serve(&["--role=worker"]).await;
    let first = begin(owner, &id, "true").await;
    owner.until(&first, is_over).await;
    worker.stop().await;
    let path = begin(owner, &id, "exec sleep 600").await;
    // As left by a worker that died before the sandbox got the command.
    let left = "update operation o
                set sandbox_id = b.sandbox_id, started_at = now()
                from sandbox b
                where b.state <> 'ended' and o.completed_at is null";
    scene.ground.sql(left).await;
    assert_eq!(post_at_once(owner, &format!("{path}/kill"), json!({})).await.status, 202);
    let worker = scene.ground.serve(&["--role=worker"]).await;
    let ended = owner.until(&path, is_over).await;
    assert_eq!((&ended["state"], &ended["cause"]), (&json!("completed"), &json!("killed")), "{ended}");
    let log = log(owner, &id).await;
    assert_sound(&log);
    assert_eq!((ends_of(&log, &ended).len(), of(&log, "sandbox.created").len()), (1, 1));
    worker.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_kill_ends_a_command_whenever_it_comes() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner).await;
    // Later commands start at once, because there is a sandbox.
    let first = begin(owner, &id, "true").await;
    owner.until(&first, is_over).await;
    let mut all = Vec::new();
    for after in AFTER_MS {
        let path = begin(owner, &id, "exec sleep 600").await;
        sleep(Duration::from_millis(after)).await;
        let killed = owner.post(&format!("{path}/kill"), json!({})).await;
        assert_eq!(killed.status, 200, "{after} ms: {}", killed.body);
        let killed = killed.ok();
        assert_eq!(
            (&killed["state"], &killed["cause"]),
            (&json!("completed"), &json!("killed")),
            "{after} ms"
        );
        all.push(killed);
    }
    let ends = async || of(&log(owner, &id).await, "exec.completed").len();
    wait_for("the ends", async || (ends().await > all.len()).then_some(())).await;
    let log = log(owner, &id).await;
    assert_sound(&log);
    for killed in &all {
        let ends = ends_of(&log, killed);
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert_eq!(
            (&ends[0]["body"]["cause"], &ends[0]["body"]["exit_code"]),
            (&killed["cause"], &killed["exit_code"])
        );
    }
    assert_eq!(of(&log, "exec.started").len(), all.len() + 1);
    scene.close().await;
}

#[tokio::test]
async fn a_stop_ends_a_command_that_is_about_to_start() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = empty(owner).await;
    let path = begin(owner, &id, "exec sleep 600").await;
    assert_eq!(post_at_once(owner, &format!("/sessions/{id}/stop"), json!({})).await.status, 202);
    let worker = scene.ground.serve(&["--role=worker"]).await;
    let ended = owner.until(&path, is_over).await;
    assert_eq!((&ended["state"], &ended["cause"]), (&json!("completed"), &json!("killed")), "{ended}");
    owner.until(&format!("/sessions/{id}"), |shown| shown["sandbox"]["state"] == "hibernated").await;
    assert_sound(&log(owner, &id).await);
    worker.stop().await;
    scene.close().await;
}
