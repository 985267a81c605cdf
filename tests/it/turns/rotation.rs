//! Sandboxes with a maximum lifetime: replaced before it ends, with the session's files.

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, log, of, outputs, run, script, session, steer, until};

/// A session that waits for input, with a sandbox lifetime in seconds that is shorter than the API allows, so
/// that the test is fast.
async fn short_lived(scene: &Scene, timeout: u64, buffer: u64) -> String {
    let environment = json!({ "cpus": 1.5, "memory": "256Mi", "timeout_seconds": 60 });
    let agent = scene.owner.inline_agent().await;
    let created =
        scene.owner.post("/sessions", json!({ "agent": agent, "environment": environment })).await.ok();
    assert_eq!(created["session"]["environment"]["config"], environment);
    let short = json!({ "environment_id": null, "name": null, "config": {
        "memory": "256Mi", "timeout_seconds": timeout, "rotation": { "pre_rotate_buffer_seconds": buffer },
    } });
    let mut superuser = scene.ground.database.superuser().await;
    sqlx::query("update session set environment = $1::json")
        .bind(short.to_string())
        .execute(&mut superuser)
        .await
        .expect("an update");
    created["session"]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_sandbox_is_replaced_between_two_calls_of_a_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = short_lived(&scene, 6, 3).await;
    let calls = json!([
        run("echo one >> a; echo home > ~/b; echo gone > /tmp/c; sleep 3.2"),
        run("cat a ~/b; ls /tmp; echo two >> a"),
        { "text": "Done." },
    ]);
    steer(owner, &id, &script(calls)).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(outputs(&log)[1], "one\nhome\n");
    let types: Vec<_> =
        log.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("sandbox.")).collect();
    let expected =
        ["created", "rotation_started", "checkpoint_created", "terminated", "created", "rotation_completed"];
    assert_eq!(types[..6], expected);
    let done = &of(&log, "sandbox.rotation_completed")[0]["body"];
    let created = of(&log, "sandbox.created");
    assert_eq!(
        (&done["from_sandbox_id"], &done["sandbox_id"]),
        (&created[0]["body"]["sandbox_id"], &created[1]["body"]["sandbox_id"])
    );
    assert_eq!(of(&log, "sandbox.terminated")[0]["body"]["reason"], "rotated");
    assert!(session(owner, &id).await["sandbox"]["expires_at"].is_string());
    scene.close().await;
}

#[tokio::test]
async fn a_command_that_outlasts_its_sandbox_is_ended_and_the_turn_goes_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = short_lived(&scene, 2, 1).await;
    let calls = json!([run("echo kept > a; sleep 600"), run("cat a"), { "text": "Done." }]);
    steer(owner, &id, &script(calls)).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(of(&log, "exec.completed")[0]["body"]["cause"], "killed");
    assert_eq!(outputs(&log)[1], "kept\n");
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_is_replaced_between_two_turns() {
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=600", "--sandbox-hibernate-after-seconds=600"]).await;
    let owner = &scene.owner;
    let id = short_lived(&scene, 4, 2).await;
    steer(owner, &id, &script(json!([run("echo here > a"), { "text": "Done." }]))).await;
    let log = until(owner, &id, "sandbox.rotation_completed").await;
    let at = |kind: &str| of(&log, kind)[0]["seq"].as_i64().expect("a seq");
    assert!(at("turn.completed") < at("sandbox.rotation_started"), "it was not requested");
    assert_eq!(of(&log, "sandbox.rotation_completed")[0]["turn_id"], Value::Null);
    steer(owner, &id, &script(json!([run("cat a"), { "text": "Done." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log)[1], "here\n");
    scene.close().await;
}

#[tokio::test]
async fn a_frozen_sandbox_past_its_lifetime_is_hibernated() {
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=600"]).await;
    let owner = &scene.owner;
    let id = short_lived(&scene, 4, 2).await;
    steer(owner, &id, &script(json!([run("echo here > a"), { "text": "Done." }]))).await;
    let log = until(owner, &id, "sandbox.terminated").await;
    assert_eq!(of(&log, "sandbox.terminated")[0]["body"]["reason"], "expired");
    assert_eq!((of(&log, "sandbox.frozen").len(), of(&log, "sandbox.rotation_started").len()), (1, 0));
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_is_as_small_as_its_environment() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let hog = "python3 -c 'x = bytearray(200 << 20)'; echo $?";
    let input = json!({ "script": [run(hog), { "text": "Done." }] });
    let small = json!({ "agent": agent, "environment": { "memory": "96Mi" }, "input": input });
    let created = owner.post("/sessions", small).await.ok();
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    owner.settled(&id, 1).await;
    let log = log(owner, &id).await;
    assert!(outputs(&log)[0].contains("137") || of(&log, "exec.completed")[0]["body"]["cause"] == "oom");
    scene.close().await;
}

#[tokio::test]
async fn a_session_without_an_agent_fails_when_its_sandbox_cannot_be_replaced() {
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=600", "--sandbox-hibernate-after-seconds=600"]).await;
    let owner = &scene.owner;
    let environment = |image: &str| {
        let rotation = json!({ "pre_rotate_buffer_seconds": 2 });
        let config = json!({ "image": image, "timeout_seconds": 4, "rotation": rotation });
        let pinned = json!({ "environment_id": null, "name": null, "config": config });
        format!("update session set environment = '{pinned}'")
    };
    let created = owner.post("/sessions", json!({ "environment": { "timeout_seconds": 60 } })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    scene.ground.sql(&environment("host")).await;
    let exec = async |command: &str| {
        owner.post(&format!("/sessions/{id}/exec"), json!({ "command": command })).await
    };
    exec("echo here > a").await.ok();
    // No sandbox can be made of an image that no worker has.
    scene.ground.sql(&environment("absent")).await;
    let log = until(owner, &id, "sandbox.rotation_failed").await;
    let failed = of(&log, "sandbox.rotation_failed")[0];
    assert_eq!((&failed["body"]["failed"], &failed["turn_id"]), (&json!(true), &Value::Null));
    let shown = session(owner, &id).await;
    assert_eq!((&shown["status"], &shown["exit_status"]), (&json!("failed"), &json!("error")));
    let listed = owner.get("/sessions?status=failed").await.ok();
    assert_eq!(listed["data"][0]["id"], id.as_str());
    assert_eq!(exec("cat a").await.error(409)["code"], "failed");
    // A start tries again, with the files of the checkpoint.
    scene.ground.sql(&environment("host")).await;
    let started = owner.post(&format!("/sessions/{id}/start"), json!({})).await.ok();
    assert_eq!((&started["status"], &started["exit_status"]), (&json!("idle"), &Value::Null));
    assert_eq!(exec("cat a").await.ok()["stdout"], "here\n");
    scene.close().await;
}
