//! Admission of sandboxes: what a node and an organization have capacity for, and who waits.

mod decisions;

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, appears, ends, log, of, outputs, run, until};
use crate::support::service::{Caller, send};

/// Capacity for one sandbox of the default size, of which another cannot wait to be frozen.
const ONE: [&str; 2] = ["--node-memory=3Gi", "--sandbox-freeze-after-seconds=600"];
const METRICS: &str = "--metrics-listen=127.0.0.1:0";

/// A session whose sandbox stays busy for ten minutes.
async fn holder(owner: &Caller) -> String {
    owner.play(json!([run("touch ready; sleep 600"), { "text": "Never." }])).await
}

async fn short(owner: &Caller) -> String {
    owner.play(json!([run("echo there"), { "text": "Done." }])).await
}

/// Shortage and position of each wait.
fn waits(log: &[Value]) -> Vec<(&str, i64)> {
    let mut waits = Vec::new();
    for event in of(log, "sandbox.waiting") {
        let body = &event["body"];
        let shortage = body["shortage"].as_str().expect("a shortage");
        waits.push((shortage, body["queue_position"].as_i64().expect("a position")));
    }
    waits
}

async fn archive(owner: &Caller, session: &str) {
    owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
}

#[tokio::test]
async fn sessions_wait_for_capacity_in_the_order_in_which_they_asked() {
    let scene = Scene::open(&[ONE[0], ONE[1], METRICS]).await;
    let owner = &scene.owner;
    let holder = holder(owner).await;
    appears(&scene.ground, "ready").await;
    let first = short(owner).await;
    let waiting = until(owner, &first, "sandbox.waiting").await;
    assert_eq!(waits(&waiting), [("node_memory", 1)]);
    let second = short(owner).await;
    let waiting = until(owner, &second, "sandbox.waiting").await;
    assert_eq!(waits(&waiting), [("node_memory", 2)]);
    let shown = super::session(owner, &second).await;
    assert_eq!(shown["phase"], "waiting_for_capacity");
    let wait = &shown["sandbox_wait"];
    assert_eq!((&wait["shortage"], &wait["queue_position"]), (&json!("node_memory"), &json!(2)), "{wait}");
    let capacity = owner.get("/capacity").await.ok();
    assert_eq!(capacity["sandboxes"], json!({ "used": 1, "max": null }));
    assert_eq!(capacity["sessions_waiting"], 2);
    let nodes = crate::admin::run(&scene.ground, &["list-nodes"]);
    assert_eq!(nodes.lines().count(), 1, "{nodes}");
    let line = "1 sandboxes, 2.0/32 CPUs, 2.0/3 GiB reserved, 2 sessions wait";
    assert!(nodes.contains(" alive") && nodes.contains(line), "{nodes}");
    let metrics = scene.service.metrics().await;
    assert_eq!(metrics["sojourn_sandboxes_waiting"], 2.0);
    assert!(metrics["sojourn_node_reserved_ratio{resource=\"memory\"}"] > 0.6, "{metrics:?}");
    for resource in ["cpu", "pids", "disk"] {
        let name = format!("sojourn_node_reserved_ratio{{resource=\"{resource}\"}}");
        assert!(metrics[&name] > 0.0, "{metrics:?}");
    }
    archive(owner, &holder).await;
    let served = owner.settled(&first, 1).await;
    assert!(outputs(&served)[0].contains("there"), "{served:?}");
    assert!(of(&log(owner, &second).await, "sandbox.created").is_empty(), "there is capacity for one");
    archive(owner, &first).await;
    let served = owner.settled(&second, 1).await;
    assert!(outputs(&served)[0].contains("there"), "{served:?}");
    assert_eq!(scene.service.metrics().await["sojourn_sandboxes_waiting"], 0.0);
    scene.close().await;
}

#[tokio::test]
async fn a_wait_ends_the_turn_with_its_reason_and_the_next_message_tries_again() {
    let scene = Scene::open(&[ONE[0], ONE[1], "--sandbox-wait-seconds=2"]).await;
    let owner = &scene.owner;
    let holder = holder(owner).await;
    appears(&scene.ground, "ready").await;
    let id = short(owner).await;
    let ended = owner.settled(&id, 1).await;
    assert!(of(&ended, "error.runtime").is_empty(), "the wait is not repeated: {ended:?}");
    let end = &of(&ended, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "sandbox_unavailable", "{end}");
    let message = end["error"]["message"].as_str().expect("text");
    assert!(message.contains("no capacity") && message.contains("memory of the node"), "{message}");
    archive(owner, &holder).await;
    super::steer(owner, &id, &super::script(json!([run("echo now"), { "text": "Done." }]))).await;
    let served = owner.settled(&id, 2).await;
    assert!(outputs(&served).iter().any(|output| output.contains("now")), "{served:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_frozen_sandbox_leaves_capacity_for_others() {
    let soon = ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=600"];
    let scene = Scene::open(&[ONE[0], soon[0], soon[1]]).await;
    let owner = &scene.owner;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let id = short(owner).await;
        owner.settled(&id, 1).await;
        until(owner, &id, "sandbox.frozen").await;
        sessions.push(id);
    }
    // A thawed one has its place back at once, and counts in full.
    super::steer(owner, &sessions[0], &super::script(json!([run("echo again"), { "text": "Done." }]))).await;
    let thawed = owner.settled(&sessions[0], 2).await;
    assert!(waits(&thawed).is_empty() && outputs(&thawed)[1].contains("again"), "{thawed:?}");
    scene.close().await;
}

#[tokio::test]
async fn sandboxes_are_frozen_while_waiting_turns_keep_every_worker_busy() {
    let soon = ["--sandbox-freeze-after-seconds=1", "--sandbox-hibernate-after-seconds=600"];
    let scene = Scene::open(&[ONE[0], "--max-concurrent-turns=1", soon[0], soon[1]]).await;
    let owner = &scene.owner;
    let idle = short(owner).await;
    owner.settled(&idle, 1).await;
    // Many more than may run, and one of the session whose sandbox has the capacity.
    let mut waited = Vec::new();
    for _ in 0..6 {
        waited.push(short(owner).await);
    }
    super::steer(owner, &idle, &super::script(json!([run("echo own"), { "text": "Done." }]))).await;
    let served = owner.settled(&idle, 2).await;
    assert!(outputs(&served)[1].contains("own"), "{served:?}");
    let mut have_waited = 0;
    for waited in &waited {
        let ended = owner.settled(waited, 1).await;
        assert_eq!(ends(&ended), ["completed"], "{ended:?}");
        have_waited += usize::from(!waits(&ended).is_empty());
    }
    // Each sandbox has the capacity for a second after its turn.
    assert!(have_waited > 0, "there was capacity for all");
    scene.close().await;
}

#[tokio::test]
async fn a_turn_that_waits_holds_no_slot_and_repeats_nothing() {
    let scene = Scene::open(&[ONE[0], ONE[1], "--max-concurrent-turns=2"]).await;
    let owner = &scene.owner;
    let holder = holder(owner).await;
    appears(&scene.ground, "ready").await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let id = short(owner).await;
        until(owner, &id, "sandbox.waiting").await;
        waiting.push(id);
    }
    let passing = owner.play(json!([{ "text": "No sandbox." }])).await;
    assert_eq!(ends(&owner.settled(&passing, 1).await), ["completed"]);
    // It leaves the queue with its turn.
    owner.post(&format!("/sessions/{}/cancel", waiting[0]), json!({})).await.ok();
    assert_eq!(ends(&owner.settled(&waiting[0], 1).await), ["canceled"]);
    assert_eq!(owner.get("/capacity").await.ok()["sessions_waiting"], 4);
    archive(owner, &holder).await;
    let served = owner.settled(&waiting[1], 1).await;
    assert_eq!(ends(&served), ["completed"]);
    let kinds = served.iter().filter_map(|event| event["type"].as_str());
    let kinds: Vec<_> = kinds.filter(|kind| !matches!(*kind, "sandbox.waiting" | "sandbox.egress")).collect();
    let mut without_wait = Vec::from(&kinds[..]);
    without_wait.dedup();
    assert_eq!((kinds.len(), waits(&served)[0]), (without_wait.len(), ("node_memory", 2)), "{kinds:?}");
    assert_eq!(
        (of(&served, "turn.started").len(), of(&served, "sandbox.created").len()),
        (1, 1),
        "{kinds:?}"
    );
    scene.close().await;
}

#[tokio::test]
async fn calls_that_wait_together_end_the_turn_once() {
    let scene = Scene::open(&[ONE[0], ONE[1], "--sandbox-wait-seconds=2"]).await;
    let owner = &scene.owner;
    let holder = holder(owner).await;
    appears(&scene.ground, "ready").await;
    let read = json!({ "tool": "read", "input": { "path": "a" } });
    let find = json!({ "tool": "glob", "input": { "pattern": "*" } });
    let id = owner.play(json!([{ "tools": [read, find] }, { "text": "Never." }])).await;
    let ended = owner.settled(&id, 1).await;
    let end = &of(&ended, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "sandbox_unavailable", "{end}");
    assert_eq!(of(&ended, "tool.result").len(), 2);
    assert_eq!(owner.get("/capacity").await.ok()["sessions_waiting"], 0, "its wait ends with the turn");
    archive(owner, &holder).await;
    scene.close().await;
}

#[tokio::test]
async fn an_operation_waits_for_capacity_without_a_worker() {
    let scene = Scene::open(&[ONE[0], ONE[1], "--max-concurrent-turns=2"]).await;
    let owner = &scene.owner;
    let holder = holder(owner).await;
    appears(&scene.ground, "ready").await;
    let mut starting = Vec::new();
    for _ in 0..3 {
        let id = owner.play(json!([{ "text": "No sandbox." }])).await;
        owner.settled(&id, 1).await;
        let command = json!({ "command": "echo served" });
        let begin = owner.request(Method::POST, &format!("/sessions/{id}/exec")).header("Prefer", "wait=0");
        let begun = send(begin.json(&command)).await;
        let exec = begun.ok()["id"].as_str().expect("an id").to_owned();
        until(owner, &id, "sandbox.waiting").await;
        starting.push((id, exec));
    }
    let passing = owner.play(json!([{ "text": "No sandbox." }])).await;
    assert_eq!(ends(&owner.settled(&passing, 1).await), ["completed"]);
    archive(owner, &holder).await;
    for (id, exec) in &starting {
        let exec = format!("/sessions/{id}/exec/{exec}");
        let ended = owner.until(&exec, |exec| exec["state"] == "completed").await;
        assert_eq!(ended["stdout"], "served\n", "{ended}");
        archive(owner, id).await;
    }
    scene.close().await;
}

#[tokio::test]
async fn an_organization_waits_for_itself_and_lets_others_pass() {
    let scene = Scene::open(&["--organization-max-sandboxes=1", ONE[1]]).await;
    let owner = &scene.owner;
    let other = scene.service.caller(&scene.ground.organization("other").await);
    let holder = holder(owner).await;
    appears(&scene.ground, "ready").await;
    let waiting = short(owner).await;
    let told = until(owner, &waiting, "sandbox.waiting").await;
    assert_eq!(waits(&told), [("organization_sandboxes", 1)]);
    let passing = short(&other).await;
    let served = other.settled(&passing, 1).await;
    assert!(waits(&served).is_empty(), "{served:?}");
    archive(owner, &holder).await;
    assert_eq!(ends(&owner.settled(&waiting, 1).await), ["completed"]);
    scene.close().await;
}

#[tokio::test]
async fn what_never_fits_is_refused_at_once() {
    let scene = Scene::open(&["--node-memory=4Gi", "--sandbox-max-memory=8Gi", "--sandbox-max-cpus=1"]).await;
    let owner = &scene.owner;
    let environment = |memory: &str| json!({ "environment": { "memory": memory } });
    let error = owner.post("/sessions", environment("9Gi")).await.error(400);
    assert_eq!(error["param"], "environment.memory", "{error}");
    let stored = json!({ "name": "large", "config": { "cpus": 2 } });
    let error = owner.post("/environments", stored).await.error(400);
    assert_eq!(error["param"], "config.cpus", "{error}");
    // Allowed, and more than this node has.
    let began = Instant::now();
    let id = owner.play_in(json!([run("true"), { "text": "Done." }]), json!({ "memory": "5Gi" })).await;
    let ended = owner.settled(&id, 1).await;
    let end = &of(&ended, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "sandbox_unavailable", "{end}");
    assert!(end["error"]["message"].as_str().expect("text").contains("5120 MiB of memory"), "{end}");
    assert!(began.elapsed() < Duration::from_secs(60));
    // The default size is above the maximum, too: then the maximum is the size.
    let id = owner.play(json!([run("echo fits"), { "text": "Done." }])).await;
    assert!(outputs(&owner.settled(&id, 1).await)[0].contains("fits"));
    scene.close().await;
}

#[tokio::test]
async fn callers_take_no_checkpoint_above_the_maximum_of_their_organization() {
    let scene = Scene::open(&["--organization-max-checkpoints=1Mi", ONE[1]]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("head -c 2000000 /dev/urandom > file"), { "text": "Done." }])).await;
    owner.settled(&id, 1).await;
    let checkpoints = format!("/sessions/{id}/checkpoints");
    owner.post(&checkpoints, json!({})).await.ok();
    let error = owner.post(&checkpoints, json!({})).await.error(409);
    assert_eq!(error["code"], "sandbox_unavailable", "{error}");
    assert!(error["message"].as_str().expect("text").contains("archive or delete sessions"), "{error}");
    scene.close().await;
}

#[tokio::test]
async fn a_full_disk_makes_no_sandbox() {
    let scene = Scene::open(&["--node-disk-free=900000Gi", "--sandbox-wait-seconds=1", METRICS]).await;
    let owner = &scene.owner;
    let id = short(owner).await;
    let ended = owner.settled(&id, 1).await;
    assert_eq!(waits(&ended), [("node_disk_low", 1)], "one wait, and no further try");
    assert_eq!(of(&ended, "turn.completed")[0]["body"]["error"]["code"], "sandbox_unavailable");
    assert_eq!(scene.service.metrics().await["sojourn_nodes_disk_low"], 1.0);
    scene.close().await;
}

#[tokio::test]
async fn two_organizations_share_the_host_only_by_the_operators_word() {
    let scene = Scene::open(&["--allow-shared-host=off"]).await;
    let owner = &scene.owner;
    let alone = short(owner).await;
    assert_eq!(ends(&owner.settled(&alone, 1).await), ["completed"]);
    let other = scene.service.caller(&scene.ground.organization("other").await);
    for caller in [owner, &other] {
        let id = short(caller).await;
        let ended = caller.settled(&id, 1).await;
        let end = &of(&ended, "turn.completed")[0]["body"];
        assert_eq!(end["error"]["code"], "sandbox_unavailable", "{end}");
        assert!(
            end["error"]["message"].as_str().expect("text").contains("SOJOURN_SANDBOX_RUNTIME=runsc"),
            "{end}"
        );
    }
    scene.close().await;
}
