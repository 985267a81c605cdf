//! Turns from message to result, over HTTP and in real sandboxes.

mod abandoned;
mod actions;
mod admission;
mod archive;
mod blobs;
mod cancel;
mod changed_agent;
mod child_sessions;
mod compaction;
mod control;
mod direct;
mod environment;
mod exec_kills;
mod fallback;
mod faults;
mod files;
mod fold;
mod follow;
mod handover;
mod hold;
mod idle;
pub mod image;
mod kept_drafts;
mod kills;
mod leaks;
mod limits;
mod loops;
mod mcp;
mod mid_turn;
mod node_agent;
mod nodes;
mod output;
mod provider_headers;
mod retry;
mod rootless;
mod rotation;
mod skills;
mod source;
mod steering;
mod steps;
mod stored_files;
mod task;
mod tools;
mod webhooks;
mod worker_nodes;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::support::{
    service::{Caller, Ground, Service},
    wait::wait_for,
};

/// A service on its own ground, and its owner.
pub struct Scene {
    pub ground: Ground,
    pub service: Service,
    pub owner: Caller,
}

impl Scene {
    pub async fn open(more: &[&str]) -> Self {
        let ground = Ground::new().await;
        let service = ground.serve(more).await;
        let owner = service.owner();
        Self { ground, service, owner }
    }

    pub async fn close(self) {
        self.service.stop().await;
    }
}

/// A call of `bash`, as a script contains it.
pub fn bash(command: &str) -> Value {
    json!({ "tool": "bash", "input": { "command": command } })
}

/// A step without text that runs one command.
pub fn run(command: &str) -> Value {
    json!({ "tools": [bash(command)] })
}

/// A script as the text of a steer.
pub fn script(steps: Value) -> String {
    json!({ "script": steps }).to_string()
}

/// Creates an agent of the fake Anthropic and a session of it. Returns the session's id.
pub async fn ask_model(caller: &Caller, input: &str) -> String {
    let agent =
        json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test" });
    caller.post("/agents", agent).await.ok();
    let created = caller.post("/sessions", json!({ "agent": "fake", "input": input })).await.ok();
    created["session"]["id"].as_str().expect("an id").to_owned()
}

/// Sends a message; returns its `seq`.
pub async fn steer(caller: &Caller, session: &str, text: &str) -> i64 {
    let steered = caller.post(&format!("/sessions/{session}/messages"), json!({ "text": text })).await;
    steered.ok()["event"]["seq"].as_i64().expect("a seq")
}

pub async fn session(caller: &Caller, id: &str) -> Value {
    caller.get(&format!("/sessions/{id}")).await.ok()
}

/// The newest turn with all fields.
pub async fn last_turn(caller: &Caller, session: &str) -> Value {
    caller.get(&format!("/sessions/{session}/result")).await.ok()["last_turn"].clone()
}

/// The whole log.
pub async fn log(caller: &Caller, session: &str) -> Vec<Value> {
    let page = caller.get(&format!("/sessions/{session}/events?limit=500")).await.ok();
    page["data"].as_array().expect("a page").clone()
}

/// Waits for an event of that type; returns the log until then.
pub async fn until(caller: &Caller, session: &str, kind: &str) -> Vec<Value> {
    caller.follow(session, |event| event["type"] == kind).await
}

/// Events of one type.
pub fn of<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|event| event["type"] == kind).collect()
}

/// Outputs of the tools, in order.
pub fn outputs(log: &[Value]) -> Vec<&str> {
    of(log, "tool.result").iter().map(|event| event["body"]["output"].as_str().expect("text")).collect()
}

/// Yield reasons of the turns, in order.
pub fn ends(log: &[Value]) -> Vec<&str> {
    let reasons = of(log, "turn.completed").into_iter().map(|event| &event["body"]["yield_reason"]);
    reasons.map(|reason| reason.as_str().expect("a reason")).collect()
}

pub fn seqs(log: &[Value]) -> Vec<i64> {
    log.iter().map(|event| event["seq"].as_i64().expect("a seq")).collect()
}

/// Asserts no gaps, no duplicates, and an end for everything that started.
#[track_caller]
pub fn assert_sound(log: &[Value]) {
    assert_eq!(seqs(log), (1..=log.len() as i64).collect::<Vec<_>>());
    let ids = |kind: &str, field: &str| -> Vec<String> {
        let mut ids: Vec<_> = of(log, kind).iter().map(|event| event["body"][field].to_string()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids("tool.call", "call_id"), ids("tool.result", "call_id"), "each call has one result");
    let mut ended = ids("turn.completed", "turn_id");
    for retried in ids("turn.retried", "turn_id") {
        let place = ended.iter().position(|turn| *turn == retried).expect("a turn ends before it is retried");
        ended.remove(place);
    }
    assert!(ended.windows(2).all(|pair| pair[0] != pair[1]), "a turn ends once, and once a retry: {ended:?}");
}

/// Workspace of the only session on the machine, once it exists.
fn found_workspace(ground: &Ground) -> Option<PathBuf> {
    let only = |dir: &Path| -> Option<PathBuf> {
        let mut entries = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
        let first = entries.next()?;
        assert_eq!(entries.next(), None, "only one session has a disk");
        Some(first)
    };
    Some(only(&only(&ground.sandboxes().data_dir.join("sandboxes"))?)?.join("files/workspace"))
}

/// Workspace of the only session on the machine.
pub fn workspace(ground: &Ground) -> PathBuf {
    found_workspace(ground).expect("one session has a disk")
}

/// Polls for a condition outside the service.
pub async fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    wait_for(what, async || is_true().then_some(())).await;
}

/// Waits for a file in the only workspace of this ground.
pub async fn appears(ground: &Ground, name: &str) {
    wait_until(name, || found_workspace(ground).is_some_and(|place| place.join(name).exists())).await;
}

/// Number of processes of this machine with `text` in their arguments.
pub fn processes(text: &str) -> usize {
    let all = fs::read_dir("/proc").expect("proc").flatten();
    let lines = all.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

#[tokio::test]
async fn a_session_runs_its_turn_and_has_a_result() {
    let scene = Scene::open(&[]).await;
    let session = scene.owner.play(json!([{ "text": "All done." }])).await;
    let log = scene.owner.settled(&session, 1).await;
    assert_sound(&log);
    let result = scene.owner.get(&format!("/sessions/{session}/result")).await.ok();
    assert_eq!(result["last_turn"]["yield_reason"], "completed");
    assert_eq!(result["result"]["body"]["text"], "All done.");
    scene.close().await;
}
