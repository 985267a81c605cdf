//! Webhooks from the commit of an event to its receiver.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use sojourn::webhook::{Secret, sign};

use super::{Scene, bash, outputs, steer};
use crate::{
    fake::receiver::{Received, Receiver, Reply},
    support::{
        clock::MovedClock,
        program::Program,
        service::{Caller, Ground, KEY},
        wait::wait_for,
    },
};

const SECRET: &str = "whsec_c29qb3Vybi13ZWJob29rLXNlY3JldC1vZi0zMi1ieXQ=";

async fn create(owner: &Caller, more: Value) -> Value {
    let mut session = json!({ "agent": owner.inline_agent().await, "metadata": { "thread": "C1/2" } });
    session.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    owner.post("/sessions", session).await.ok()
}

fn id(created: &Value) -> String {
    created["session"]["id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn verified(received: &Received, secret: &str) -> Value {
    let secret = Secret::parse(secret).expect("a secret");
    let at = received.header("webhook-timestamp").parse().expect("seconds");
    let signature = sign(&[secret], received.header("webhook-id"), at, &received.body);
    assert_eq!(received.header("webhook-signature"), signature);
    serde_json::from_slice(&received.body).expect("JSON")
}

async fn deliveries(owner: &Caller, session: &str) -> Vec<Value> {
    let page = owner.get(&format!("/sessions/{session}/deliveries")).await.ok();
    page["data"].as_array().expect("a page").clone()
}

/// Waits until the session's deliveries satisfy `is_it`.
async fn settles(owner: &Caller, session: &str, is_it: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    wait_for("deliveries", async || Some(deliveries(owner, session).await).filter(|now| is_it(now))).await
}

fn all(deliveries: &[Value], status: &str) -> bool {
    !deliveries.is_empty() && deliveries.iter().all(|delivery| delivery["status"] == status)
}

/// A service whose clock the test moves.
struct Moved {
    program: Program,
    owner: Caller,
    clock: MovedClock,
    _ground: Ground,
}

impl Moved {
    async fn start() -> Self {
        let ground = Ground::new().await;
        let clock = MovedClock::new(&ground).await;
        let program = Program::with_environment(&ground, &[], clock.environment());
        let owner = Caller::new(&program.base, KEY);
        Self { program, owner, clock, _ground: ground }
    }

    /// Lets time pass until the last scheduled delivery is due.
    async fn until_due(&mut self) {
        let next =
            "select extract(epoch from max(ready_at) - now())::float8 from delivery where status = 'failed'";
        let next: f64 = sqlx::query_scalar(next).fetch_one(self.clock.database()).await.expect("a delivery");
        self.clock.advance(Duration::from_secs_f64(next.max(0.0) + 1.0)).await;
    }
}

#[tokio::test]
async fn a_destination_at_create_hears_the_first_message_and_the_end_of_the_turn() {
    let mut receiver = Receiver::start([]).await;
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let created = create(
        owner,
        json!({ "webhook": receiver.url().as_str(), "input": { "script": [{ "text": "Here." }] } }),
    )
    .await;
    let destination = &created["destinations"][0];
    let secret = destination["secret"].as_str().expect("shown once").to_owned();
    assert!(secret.starts_with("whsec_"));
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let received = receiver.next().await;
        let body = verified(&received, &secret);
        assert_eq!(
            (&body["sessionId"], &body["metadata"]),
            (&created["session"]["id"], &json!({ "thread": "C1/2" }))
        );
        assert_eq!(body["eventId"], body["event"]["id"]);
        assert_eq!(body["event"]["level"], "user");
        let is_input = body["event"]["type"] == "user.message";
        assert_eq!(body["event"].get("processed_at").is_some(), is_input, "{body}");
        seen.insert(body["type"].as_str().expect("a type").to_owned());
    }
    assert_eq!(seen, ["agent.message", "turn.completed", "user.message"].map(str::to_owned).into());
    let session = id(&created);
    let done = settles(owner, &session, |all_of| all_of.len() == 3 && all(all_of, "delivered")).await;
    assert!(
        done.iter().all(|delivery| delivery["attempts"] == 1 && delivery["response_code"] == 200),
        "{done:?}"
    );
    assert!(done[0]["event_seq"].as_i64() > done[2]["event_seq"].as_i64(), "newest first");
    let again = owner.get(&format!("/sessions/{session}/destinations")).await.ok();
    assert!(again["data"][0].get("secret").is_none(), "it is shown once");
    scene.close().await;
}

#[tokio::test]
async fn a_later_destination_hears_what_comes_after_it_as_it_filters() {
    let (mut some, mut every) = (Receiver::start([]).await, Receiver::start([]).await);
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let session = id(&create(owner, json!({ "input": { "script": [{ "text": "Before." }] } })).await);
    owner.settled(&session, 1).await;
    let add =
        async |wanted: Value| owner.post(&format!("/sessions/{session}/destinations"), wanted).await.ok();
    let types = json!(["turn.*", "tool.result"]);
    add(json!({ "url": some.url().as_str(), "secret": SECRET, "level": "progress", "types": types })).await;
    add(json!({ "url": every.url().as_str(), "secret": SECRET, "level": "internal" })).await;
    let glob = json!({ "tools": [{ "tool": "glob", "input": { "pattern": "*" } }] });
    steer(owner, &session, &super::script(json!([glob, { "text": "After." }]))).await;
    let log = owner.settled(&session, 2).await;
    let before = super::of(&log, "turn.completed")[0]["seq"].as_i64().expect("a seq");
    let after: Vec<_> = log.iter().filter(|event| event["seq"].as_i64() > Some(before)).collect();
    let mut heard = BTreeSet::new();
    for _ in &after {
        heard.insert(verified(&every.next().await, SECRET)["event"]["seq"].as_i64().expect("a seq"));
    }
    assert_eq!(heard.len(), after.len());
    assert!(heard.iter().all(|seq| *seq > before));
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(verified(&some.next().await, SECRET)["type"].as_str().expect("a type").to_owned());
    }
    heard.sort();
    assert_eq!(heard, ["tool.result", "turn.completed", "turn.started"]);
    settles(owner, &session, |found| found.len() == after.len() + 3 && all(found, "delivered")).await;
    scene.close().await;
}

#[tokio::test]
async fn a_receiver_that_was_down_gets_the_same_delivery_later() {
    let mut receiver =
        Receiver::start([Reply::Status(503), Reply::Drop, Reply::RetryAfter(429, "3600")]).await;
    let mut moved = Moved::start().await;
    let owner = moved.owner.clone();
    let owner = &owner;
    let destination =
        json!({ "url": receiver.url().as_str(), "secret": SECRET, "types": ["turn.completed"] });
    let created = create(owner, json!({ "destinations": [destination], "input": "Go." })).await;
    let session = id(&created);
    let first = receiver.next().await;
    for (tries, code) in [(1, json!(503)), (2, Value::Null), (3, json!(429))] {
        let failed =
            settles(owner, &session, |found| all(found, "failed") && found[0]["attempts"] == tries).await;
        assert_eq!(failed[0].get("response_code").cloned().unwrap_or_default(), code);
        assert!(failed[0]["error"].is_string());
        moved.until_due().await;
        let again = receiver.next().await;
        assert_eq!(again.header("webhook-id"), first.header("webhook-id"));
        assert_eq!(verified(&again, SECRET)["event"], verified(&first, SECRET)["event"]);
    }
    let done = settles(owner, &session, |found| all(found, "delivered")).await;
    assert_eq!((done.len(), &done[0]["attempts"]), (1, &json!(4)));
    assert_eq!(done[0]["id"], first.header("webhook-id"));
    moved.program.kill();
}

#[tokio::test]
async fn a_receiver_that_is_gone_for_good_is_sent_nothing_more() {
    let mut receiver = Receiver::start([Reply::Status(500), Reply::Status(410)]).await;
    let mut moved = Moved::start().await;
    let owner = moved.owner.clone();
    let owner = &owner;
    let destination =
        json!({ "url": receiver.url().as_str(), "secret": SECRET, "types": ["turn.completed"] });
    let created = create(owner, json!({ "destinations": [destination], "input": "Go." })).await;
    let session = id(&created);
    receiver.next().await;
    settles(owner, &session, |found| all(found, "failed")).await;
    steer(owner, &session, "Again.").await;
    receiver.next().await;
    let found =
        settles(owner, &session, |found| found.iter().any(|delivery| delivery["status"] == "dead_letter"))
            .await;
    assert_eq!(found[0]["response_code"], 410);
    let destinations = owner.get(&format!("/sessions/{session}/destinations")).await.ok();
    assert_eq!(destinations["data"][0]["enabled"], false);
    // A waiting delivery becomes `dead_letter` when it is due, and later events create none.
    moved.until_due().await;
    settles(owner, &session, |found| found.len() == 2 && all(found, "dead_letter")).await;
    steer(owner, &session, "And again.").await;
    owner.settled(&session, 3).await;
    assert_eq!(deliveries(owner, &session).await.len(), 2);

    // Enabled again, it receives new events, and redeliveries under their old id.
    let path = destinations["data"][0]["id"].as_str().expect("an id");
    owner.patch(&format!("/sessions/{session}/destinations/{path}"), json!({ "enabled": true })).await.ok();
    let dead = found[0]["id"].as_str().expect("an id");
    owner.post(&format!("/sessions/{session}/deliveries/{dead}/redeliver"), json!({})).await.ok();
    assert_eq!(receiver.next().await.header("webhook-id"), dead);
    let found =
        settles(owner, &session, |found| found.iter().any(|delivery| delivery["status"] == "delivered"))
            .await;
    assert_eq!((&found[0]["id"], &found[0]["attempts"]), (&json!(dead), &json!(1)));
    let still = owner.get(&format!("/sessions/{session}/deliveries?status=dead_letter")).await.ok();
    assert_eq!(still["data"].as_array().map(Vec::len), Some(1));
    moved.program.kill();
}

#[tokio::test]
async fn a_process_that_stops_between_commit_and_send_loses_nothing() {
    let mut receiver = Receiver::start([]).await;
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let destination =
        json!({ "url": receiver.url().as_str(), "secret": SECRET, "types": ["turn.completed"] });
    let created = create(&api.owner(), json!({ "destinations": [destination], "input": "Go." })).await;
    let session = id(&created);
    api.stop().await;
    // The turn ends in a process without a dispatcher.
    let worker = ground.serve(&["--role=worker"]).await;
    let count = async || Some(ground.count("select count(*) from delivery").await).filter(|count| *count > 0);
    assert_eq!(wait_for("a delivery", count).await, 1);
    worker.stop().await;
    assert_eq!(receiver.connections(), 0);
    // A dispatcher claimed it, and died before sending.
    ground.sql("update delivery set status = 'delivering', attempts = 1, ready_at = now()").await;

    let api = ground.serve(&["--role=api"]).await;
    let body = verified(&receiver.next().await, SECRET);
    assert_eq!(body["type"], "turn.completed");
    let done = settles(&api.owner(), &session, |found| all(found, "delivered")).await;
    assert_eq!(done[0]["attempts"], 2);
    api.stop().await;
}

/// The delivery that says what a turn needs.
async fn required(receiver: &mut Receiver, secret: &str) -> Value {
    loop {
        let told = verified(&receiver.next().await, secret);
        if told["type"] == "action.required" {
            return told;
        }
    }
}

#[tokio::test]
async fn a_person_decides_by_what_the_webhook_says() {
    let mut receiver = Receiver::start([]).await;
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [bash("echo pushed")] }, { "text": "Done." }]);
    let created = create(
        owner,
        json!({
            "webhook": receiver.url().as_str(), "permissions": [{ "tool": "bash", "policy": "ask" }],
            "input": { "script": steps },
        }),
    )
    .await;
    let secret = created["destinations"][0]["secret"].as_str().expect("shown once");
    let told = required(&mut receiver, secret).await;
    let action = &told["event"]["body"];
    assert_eq!((&action["kind"], &action["reason"]), (&json!("confirmation"), &json!("policy")));
    assert_eq!((&action["tool"], &action["input"]), (&json!("bash"), &json!({ "command": "echo pushed" })));
    assert!(action["always"][0].is_object() && action["expires_at"].is_string(), "{action}");
    let decision = json!({
        "type": "user.tool_confirmation", "action_id": action["id"], "decision": "once", "args_hash": action["args_hash"],
    });
    let session = told["sessionId"].as_str().expect("an id");
    owner.post(&format!("/sessions/{session}/events"), json!({ "events": [decision] })).await.ok();
    assert_eq!(outputs(&owner.settled(session, 1).await), ["pushed\n"]);
    scene.close().await;
}

#[tokio::test]
async fn a_caller_runs_a_tool_by_what_the_webhook_says() {
    let mut receiver = Receiver::start([]).await;
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let tool = json!({ "type": "custom", "name": "ask_weather", "description": "The weather.", "input_schema": { "type": "object" } });
    let call = json!({ "tool": "ask_weather", "input": { "city": "Paris" } });
    let created = create(
        owner,
        json!({
            "webhook": receiver.url().as_str(), "tools": ["bash", tool],
            "input": { "script": [{ "tools": [call] }, { "text": "Done." }] },
        }),
    )
    .await;
    let secret = created["destinations"][0]["secret"].as_str().expect("shown once");
    let told = required(&mut receiver, secret).await;
    let action = &told["event"]["body"];
    assert_eq!((&action["kind"], &action["tool"]), (&json!("tool_result"), &json!("ask_weather")));
    assert_eq!(action["input"], json!({ "city": "Paris" }));
    let content = json!([{ "type": "text", "text": "rain" }]);
    let result = json!({ "type": "user.custom_tool_result", "action_id": action["id"], "content": content });
    let session = told["sessionId"].as_str().expect("an id");
    owner.post(&format!("/sessions/{session}/events"), json!({ "events": [result] })).await.ok();
    assert_eq!(outputs(&owner.settled(session, 1).await), ["rain"]);
    scene.close().await;
}
