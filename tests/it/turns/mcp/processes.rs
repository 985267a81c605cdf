//! Servers that are processes in the sandbox: they stay between turns, and a call is made once whoever dies.

use super::*;
use crate::{
    support::program::Program,
    support::service::{Ground, KEY},
    turns::{
        appears,
        idle::{destroy_sandbox, files},
        run, wait_until, workspace,
    },
};

/// Notification that a request is given up.
const CANCEL: &str = "notifications/cancelled";

/// A server that notes what it gets in `/workspace/seen`.
fn strict(more: Value) -> Value {
    let mut server = json!({ "name": "fake", "command": ["python3", "-c", include_str!("server.py")] });
    server.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    server
}

/// Steps with one call each.
fn steps(calls: &[&str]) -> Value {
    // No two calls are equal, or they would be taken for a loop.
    let calls =
        calls.iter().enumerate().map(|(place, name)| json!({ "tools": [call(name, &place.to_string())] }));
    calls.chain([json!({ "text": "Done." })]).collect()
}

/// Number of lines that the server has noted.
fn noted(ground: &Ground, line: &str) -> usize {
    let seen = std::fs::read_to_string(workspace(ground).join("seen")).unwrap_or_default();
    seen.lines().filter(|noted| noted.starts_with(line)).count()
}

#[tokio::test]
async fn a_process_keeps_its_state_between_turns_and_while_its_sandbox_is_frozen() {
    let soon = ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=600"];
    let scene = Scene::open(&soon).await;
    let owner = &scene.owner;
    let id = play(owner, json!([strict(json!({}))]), steps(&["count", "ask", "count"])).await;
    let rested = until(owner, &id, "sandbox.frozen").await;
    assert_sound(&rested);
    assert_eq!(outputs(&rested), ["count: 1", "asked", "count: 2"]);
    let listed = &of(&rested, "mcp.listed")[0]["body"];
    assert_eq!(
        (&listed["protocol_version"], listed["tools"].as_array().map(Vec::len)),
        (&json!("2025-06-18"), Some(6))
    );
    steer(owner, &id, &script(steps(&["count"]))).await;
    let again = owner.settled(&id, 2).await;
    assert_eq!(outputs(&again)[3], "count: 3", "the same process goes on");
    assert_eq!((of(&again, "sandbox.created").len(), of(&again, "sandbox.thawed").len()), (1, 1));
    assert_eq!(of(&again, "tool.started").len(), 0, "what it was sent is stored beside it");
    for (line, times) in [("start", 1), ("initialize", 1), ("tools/list", 1), ("answer own", 1)] {
        assert_eq!(noted(&scene.ground, line), times, "{line}");
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_killed_worker_is_answered_by_the_process_that_has_it() {
    let ground = Ground::new().await;
    let settings = ["--lease-ms=1000"];
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let id = play(&caller, json!([strict(json!({}))]), steps(&["count", "slow", "count"])).await;
    let is_called = || {
        std::fs::read_to_string(workspace(&ground).join("seen")).is_ok_and(|seen| seen.contains("call slow"))
    };
    until(&caller, &id, "sandbox.created").await;
    wait_until("the call", is_called).await;
    program.kill();
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    std::fs::write(workspace(&ground).join("go"), "").expect("a file");
    let log = caller.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log), ["count: 1", "slow: done", "count: 2"], "{log:?}");
    assert_eq!((outcomes(&log), ends(&log)), (vec!["ran"; 3], vec!["completed"]));
    assert_eq!((noted(&ground, "call slow"), noted(&ground, "initialize")), (1, 1));
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_came_while_no_worker_ran_is_the_result() {
    let ground = Ground::new().await;
    let settings = ["--lease-ms=1000"];
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let id = play(&caller, json!([strict(json!({}))]), steps(&["slow"])).await;
    until(&caller, &id, "sandbox.created").await;
    wait_until("the call", || noted_or_none(&ground, "call slow") == 1).await;
    program.kill();
    std::fs::write(workspace(&ground).join("go"), "").expect("a file");
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let log = caller.settled(&id, 1).await;
    assert_eq!((outputs(&log), outcomes(&log)), (vec!["slow: done"], vec!["ran"]));
    assert_eq!(noted(&ground, "call slow"), 1);
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_due_is_not_replaced_under_a_call() {
    let ground = Ground::new().await;
    let settings = ["--lease-ms=1000"];
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let agent = caller.inline_agent().await;
    let body = json!({
        "agent": agent, "mcp_servers": [strict(json!({}))], "input": { "script": steps(&["slow"]) },
        "permissions": [{ "tool": "mcp__*", "policy": "allow" }], "environment": { "timeout_seconds": 3_600 },
    });
    let id = caller.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    until(&caller, &id, "sandbox.created").await;
    wait_until("the call", || noted_or_none(&ground, "call slow") == 1).await;
    program.kill();
    ground.sql("update sandbox set rotates_at = now() - interval '1 second'").await;
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    std::fs::write(workspace(&ground).join("go"), "").expect("a file");
    let log = caller.settled(&id, 1).await;
    assert_eq!((outputs(&log), outcomes(&log)), (vec!["slow: done"], vec!["ran"]), "{log:?}");
    assert_eq!((noted(&ground, "call slow"), of(&log, "sandbox.created").len()), (1, 1));
    program.kill();
}

/// As [`noted`], also before the session has a disk.
fn noted_or_none(ground: &Ground, line: &str) -> usize {
    let disks = ground.sandboxes().data_dir.join("sandboxes");
    if disks.exists() { noted(ground, line) } else { 0 }
}

#[tokio::test]
async fn a_call_whose_process_dies_is_unknown_and_the_next_one_starts_another() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let idempotent = json!({ "replay": { "die": "idempotent" } });
    for (more, calls) in [(json!({}), 1), (idempotent, 2)] {
        let id = play(owner, json!([strict(more)]), steps(&["die", "count"])).await;
        let log = owner.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!((outcomes(&log), ends(&log)), (vec!["unknown", "ran"], vec!["completed"]), "{log:?}");
        let said = outputs(&log);
        assert!(said[0].contains("exit code 3: it fell over"), "{said:?}");
        assert_eq!(said[1], "count: 1");
        assert_eq!(noted(&scene.ground, "call die"), calls);
        owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
        let disks = scene.ground.sandboxes().data_dir.join("sandboxes");
        wait_until("its disk is removed", || files(&disks) == 0).await;
    }
    scene.close().await;
}

#[tokio::test]
async fn a_server_is_listed_once_there_is_capacity_for_its_sandbox() {
    let scene = Scene::open(&["--node-memory=3Gi", "--sandbox-freeze-after-seconds=600"]).await;
    let owner = &scene.owner;
    let holder = owner.play(json!([run("touch ready; sleep 600"), { "text": "Never." }])).await;
    appears(&scene.ground, "ready").await;
    let id = play(owner, json!([strict(json!({}))]), steps(&["count"])).await;
    until(owner, &id, "sandbox.waiting").await;
    owner.post(&format!("/sessions/{holder}/archive"), json!({})).await.ok();
    let log = owner.settled(&id, 1).await;
    assert_eq!((outputs(&log), of(&log, "mcp.failed").len()), (vec!["count: 1"], 0), "{log:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_program_that_cannot_run_is_an_event_with_its_words() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let broken =
        |required: bool| json!([{ "name": "fake", "command": ["no-such-server"], "required": required }]);
    let id = play(owner, broken(false), json!([{ "text": "Done." }])).await;
    let log = owner.settled(&id, 1).await;
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert_eq!((&failed["code"], ends(&log)), (&json!("unreachable"), vec!["completed"]), "{failed}");
    let message = failed["message"].as_str().expect("text");
    assert!(message.contains("exit code 127") && message.contains("no-such-server"), "{message}");
    let id = play(owner, broken(true), json!([{ "text": "Done." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(of(&log, "turn.completed")[0]["body"]["error"]["code"], "mcp_unavailable", "{log:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_canceled_turn_gives_the_call_up_at_its_process() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, json!([strict(json!({}))]), steps(&["slow"])).await;
    appears(&scene.ground, "seen").await;
    wait_until("the call", || noted(&scene.ground, "call slow") == 1).await;
    owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = owner.settled(&id, 1).await;
    assert_eq!(ends(&log), ["canceled"]);
    wait_until("it is told", || noted(&scene.ground, CANCEL) == 1).await;
    steer(owner, &id, &script(steps(&["count"]))).await;
    assert_eq!(outputs(&owner.settled(&id, 2).await).last(), Some(&"count: 1"), "it goes on");
    scene.close().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_given_up() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, json!([strict(json!({ "timeout_seconds": 1 }))]), steps(&["slow", "count"])).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outcomes(&log), ["unknown", "ran"], "{:?}", outputs(&log));
    assert!(outputs(&log)[0].contains("did not answer within 1 s"), "{:?}", outputs(&log));
    assert_eq!((noted(&scene.ground, CANCEL), noted(&scene.ground, "start")), (1, 1));
    scene.close().await;
}

#[tokio::test]
async fn a_new_sandbox_starts_the_server_again_with_the_settings_of_the_session() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let body = json!({
        "agent": agent, "mcp_servers": [strict(json!({}))],
        "permissions": [{ "tool": "mcp__*", "policy": "allow" }],
        "environment": { "env": { "WORD": "set" } },
        "input": { "script": [{ "tools": [call("env", "")] }, run("true"), { "text": "Done." }] },
    });
    let id = owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log)[0], "set in /workspace");
    destroy_sandbox(&scene.ground).await;
    steer(owner, &id, &script(steps(&["count"]))).await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((outputs(&log).last(), of(&log, "sandbox.lost").len()), (Some(&"count: 1"), 1), "{log:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_process_that_has_sent_much_is_replaced_between_calls() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(
        owner,
        json!([strict(json!({}))]),
        steps(&["count", "big", "big", "big", "big", "big", "big", "count"]),
    )
    .await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outcomes(&log), ["ran"; 8], "{:?}", outputs(&log));
    assert_eq!((outputs(&log)[0], outputs(&log)[7]), ("count: 1", "count: 1"));
    steer(owner, &id, &script(steps(&["count"]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log)[8], "count: 2");
    assert_eq!(noted(&scene.ground, "start"), 2);
    scene.close().await;
}

#[tokio::test]
async fn two_servers_with_one_command_are_two_processes() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let servers = json!([strict(json!({})), strict(json!({ "name": "other" }))]);
    let of_other = |word: &str| json!({ "tool": "mcp__other__count", "input": { "word": word } });
    let steps = json!([
        { "tools": [call("count", "a"), of_other("b")] }, { "tools": [of_other("c"), call("env", "d")] }, { "text": "Done." },
    ]);
    let id = play(owner, servers, steps).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log)[..3], ["count: 1", "count: 1", "count: 2"], "{:?}", outputs(&log));
    assert_eq!((noted(&scene.ground, "start"), outcomes(&log)), (2, vec!["ran"; 4]));
    scene.close().await;
}

#[tokio::test]
async fn a_server_may_take_its_time_to_start() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    // Longer than a server is asked for the newest version.
    let slow =
        json!({ "command": ["bash", "-c", "sleep 12; exec python3 -c \"$0\"", include_str!("server.py")] });
    let id = play(owner, json!([strict(slow)]), steps(&["count"])).await;
    let log = owner.settled(&id, 1).await;
    assert!(of(&log, "mcp.failed").is_empty(), "{log:?}");
    assert_eq!((outputs(&log), noted(&scene.ground, "start")), (vec!["count: 1"], 1));
    scene.close().await;
}

#[tokio::test]
async fn a_process_that_floods_its_output_is_given_up() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let program = "import time
for _ in range(200_000):
    print('{\"id\":1}')
for _ in range(200_000):
    print('{\"id\":\"\",\"result\":1}')
print('', flush=True)
time.sleep(600)";
    let id =
        play(owner, json!([{ "name": "fake", "command": ["python3", "-c", program] }]), steps(&[])).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(ends(&log), ["completed"]);
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert!(failed["message"].as_str().expect("text").contains("too many messages"), "{failed}");
    scene.close().await;
}

/// A server of version 2026-07-28 that takes no handshake, and longer to start than the library waits for its answer.
const SLOW: &str = r#"
import json, sys, time
time.sleep(11)
for line in sys.stdin:
    request = json.loads(line)
    method, id = request.get("method"), request.get("id")
    if id is None or method is None:
        continue
    answer = {"error": {"code": -32600, "message": "no handshake is taken"}}
    if method == "server/discover":
        answer = {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                             "serverInfo": {"name": "slow", "version": "1"}, "ttlMs": 1, "cacheScope": "private"}}
    elif method == "tools/list":
        tools = [{"name": "hello", "inputSchema": {"type": "object"}}]
        answer = {"result": {"resultType": "complete", "tools": tools, "ttlMs": 1, "cacheScope": "private"}}
    elif method == "tools/call":
        answer = {"result": {"resultType": "complete", "content": [{"type": "text", "text": "Hello."}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": id, **answer}), flush=True)
"#;

#[tokio::test]
async fn a_server_that_starts_slowly_is_not_taken_for_a_legacy_one() {
    let scene = Scene::open(&[]).await;
    let server = json!([{ "name": "fake", "command": ["python3", "-c", SLOW] }]);
    let id = play(&scene.owner, server, steps(&["hello"])).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(outputs(&log), ["Hello."], "{:?}", of(&log, "mcp.failed"));
    scene.close().await;
}
