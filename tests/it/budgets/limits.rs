//! Limits on cost, time and calls: one warning, the end of the turn, a raise, and continuation.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{agent, scene, start};
use crate::{
    fake::{Fake, Fault, Step, Used, anthropic::Anthropic, receiver::Receiver},
    turns::{Scene, assert_sound, ends, of, outputs, run, script, session, steer},
};

/// One dollar per million tokens of any kind: one micro-dollar each.
pub fn a_micro_each() -> Value {
    let price =
        json!({ "input": 1_000_000, "output": 1_000_000, "cache_write": 1_000_000, "cache_read": 1_000_000 });
    json!({ "version": "one", "models": { "anthropic/m-1": price, "scripted/inline": price } })
}

fn costs(micros: u64, step: Step) -> Step {
    step.using(Used { input: micros - 1, output: 1, cache_write: 0, cache_read: 0 })
}

fn look(micros: u64) -> Step {
    costs(micros, Step::default().and_tool("glob", json!({ "pattern": format!("{micros}*") })))
}

/// `limit`, `used`, `allowed` of each event of that type.
fn told<'a>(log: &'a [Value], kind: &str) -> Vec<(&'a str, u64, u64)> {
    let number = |event: &Value, name: &str| event["body"][name].as_u64().expect("a number");
    let of = of(log, kind).into_iter();
    of.map(|event| {
        (event["body"]["limit"].as_str().expect("a name"), number(event, "used"), number(event, "allowed"))
    })
    .collect()
}

#[tokio::test]
async fn a_webhook_receives_limit_events_at_any_level() {
    let mut receiver = Receiver::start([]).await;
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let webhook = json!({ "url": receiver.url().as_str(), "types": ["limit.*"] });
    owner.post("/webhooks", webhook).await.ok();
    owner.inline_agent().await;
    let wanted = json!({ "agent": "inline", "input": "One.", "limits": { "turns": 1 } });
    let id = owner.post("/sessions", wanted).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    owner.settled(&id, 1).await;
    steer(owner, &id, "Two.").await;
    owner.settled(&id, 2).await;
    let mut heard = Vec::new();
    for _ in 0..2 {
        let payload: Value = serde_json::from_slice(&receiver.next().await.body).expect("JSON");
        assert_eq!(payload["event"]["body"], json!({ "limit": "turns", "used": 1, "allowed": 1 }));
        assert_eq!((&payload["sessionId"], &payload["event"]["level"]), (&json!(id), &json!("progress")));
        heard.push(payload["type"].as_str().expect("a type").to_owned());
    }
    heard.sort();
    assert_eq!(heard, ["limit.exceeded", "limit.warning"]);
    scene.close().await;
}

#[tokio::test]
async fn a_limit_that_was_set_can_be_removed() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let path = format!("/agents/{agent}");
    let limits = json!({ "limits": { "turns": 1, "tokens": 1_000_000, "cost_cap_cents": 7 } });
    assert_eq!(owner.patch(&path, limits).await.ok()["limits"]["cost_micros"], 70_000);
    let changed = owner.patch(&path, json!({ "limits": { "cost_micros": null, "steps": 9 } })).await.ok();
    assert_eq!(changed["limits"], json!({ "tokens": 1_000_000, "turns": 1, "steps": 9 }));
    // A new session removes one of the agent's limits and inherits the others.
    let wanted = json!({ "agent": "inline", "input": "One.", "limits": { "tokens": null } });
    let id = owner.post("/sessions", wanted).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    owner.settled(&id, 1).await;
    steer(owner, &id, "Two.").await;
    assert_eq!(ends(&owner.settled(&id, 2).await), ["completed", "max_turns"]);
    raise(&scene, &id, json!({ "turns": null })).await;
    let now = session(owner, &id).await;
    assert_eq!(now["limits"], json!({ "steps": 9 }), "{now}");
    steer(owner, &id, "Three.").await;
    let log = owner.settled(&id, 3).await;
    assert_eq!(ends(&log)[2], "completed");
    assert_eq!(of(&log, "session.updated")[0]["body"], json!({ "limits": { "steps": 9 } }));
    // An empty change changes nothing, and a value that is not a number is rejected.
    raise(&scene, &id, json!({})).await;
    assert_eq!(session(owner, &id).await["limits"], json!({ "steps": 9 }));
    let odd = json!({ "limits": { "steps": "many" } });
    assert_eq!(owner.patch(&format!("/sessions/{id}"), odd).await.error(400)["type"], "invalid");
    scene.close().await;
}

async fn raise(scene: &Scene, id: &str, limits: Value) {
    scene.owner.patch(&format!("/sessions/{id}"), json!({ "limits": limits })).await.ok();
}

#[tokio::test]
async fn a_cost_is_warned_of_once_ends_the_turn_and_can_be_raised() {
    let steps = [look(500), look(350), look(100), look(100), costs(10, Step::text("Done."))];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({ "limits": { "cost_micros": 1_000_000, "tool_calls": 9 } })).await;
    let id = start(owner, &agent, json!({ "limits": { "cost_micros": 1_000 } })).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(told(&log, "limit.warning"), [("cost_micros", 850, 1_000)]);
    assert_eq!(told(&log, "limit.exceeded"), [("cost_micros", 1_050, 1_000)]);
    assert_eq!(ends(&log), ["budget_exceeded"]);
    assert_eq!(of(&log, "turn.completed")[0]["body"]["limit"], "cost_micros");
    assert!(outputs(&log)[3].contains("`cost_micros`"), "{:?}", outputs(&log));
    let stopped = session(owner, &id).await;
    assert_eq!(
        (stopped["status"].as_str(), stopped["limits"]["tool_calls"].as_u64()),
        (Some("idle"), Some(9))
    );
    assert_eq!(stopped["budget_consumed"]["cost_micros"], 1_050);
    // The remaining budget bounds `max_tokens`.
    assert_eq!(fake.requests()[3].body["max_tokens"], 50);

    // No loop: the next turn ends before it starts and calls no model.
    steer(owner, &id, "Go on.").await;
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log)[1], fake.calls()), ("budget_exceeded", 4));
    assert_eq!(of(&log, "turn.started").len(), 1);
    raise(&scene, &id, json!({ "cost_cap_cents": 10 })).await;
    steer(owner, &id, "Go on.").await;
    let log = owner.settled(&id, 3).await;
    assert_sound(&log);
    assert_eq!((ends(&log)[2], fake.refusals()), ("completed", Vec::<String>::new()));
    assert_eq!(session(owner, &id).await["limits"]["cost_micros"], 100_000);
    scene.close().await;
}

#[tokio::test]
async fn a_cost_cannot_be_limited_where_nobody_knows_the_price() {
    let fake = Fake::script(Anthropic::default(), []).await;
    let (scene, operator) = scene(&fake.base_url).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({})).await;
    let id = start(owner, &agent, json!({ "limits": { "cost_micros": 5 } })).await;
    let log = owner.settled(&id, 1).await;
    let end = &of(&log, "turn.completed")[0]["body"];
    assert_eq!((end["error"]["code"].as_str(), fake.calls()), (Some("price_unknown"), 0));
    assert_eq!(session(owner, &id).await["status"], "failed");
    operator.price(a_micro_each()).await;
    drop(fake);
    scene.close().await;
}

#[tokio::test]
async fn calls_may_be_used_to_the_last_and_one_more_ends_the_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let glob = json!({ "tool": "glob", "input": { "pattern": "*" } });
    let agent = owner.inline_agent().await;
    let two = json!([{ "tools": [glob, glob] }, { "text": "Two." }]);
    let created = json!({ "agent": agent, "limits": { "iterations": 2 }, "input": { "script": two } });
    let id = owner.post("/sessions", created).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    let log = owner.settled(&id, 1).await;
    assert_eq!((ends(&log), told(&log, "limit.warning")), (vec!["completed"], vec![("tool_calls", 2, 2)]));
    steer(owner, &id, &script(json!([run("touch no"), { "text": "Never." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(
        (ends(&log)[1], told(&log, "limit.exceeded")),
        ("budget_exceeded", vec![("tool_calls", 3, 2)])
    );
    assert_eq!(of(&log, "exec.completed").len(), 0);
    raise(&scene, &id, json!({ "tool_calls": 4 })).await;
    steer(owner, &id, &script(json!([run("true"), { "text": "Four." }]))).await;
    let log = owner.settled(&id, 3).await;
    assert_eq!((ends(&log)[2], of(&log, "exec.completed").len()), ("completed", 1));
    scene.close().await;
}

#[tokio::test]
async fn duration_ends_whatever_waits_and_counts_over_turns() {
    let fake =
        Fake::script(Anthropic::default(), [Step::fault(Fault::Stall), Step::fault(Fault::Stall)]).await;
    let (scene, _operator) = scene(&fake.base_url).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({})).await;
    let id = start(owner, &agent, json!({ "limits": { "duration_seconds": 1, "turn_seconds": 60 } })).await;
    // Well before `turn_seconds`, which would end the turn too.
    let log = timeout(Duration::from_secs(30), owner.settled(&id, 1)).await.expect("an end");
    assert_eq!(ends(&log), ["budget_exceeded"]);
    assert_eq!(told(&log, "limit.exceeded"), [("duration_seconds", 1, 1)]);
    let used = session(owner, &id).await["budget_consumed"]["duration_seconds"].as_u64();
    assert!(used.is_some_and(|used| used >= 1), "{used:?}");
    steer(owner, &id, "Go on.").await;
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log)[1], fake.calls()), ("budget_exceeded", 1));
    scene.close().await;
}

#[tokio::test]
async fn a_limit_has_two_names_and_takes_one() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    for (limits, param) in [
        (json!({ "cost_micros": 1, "cost_cap_cents": 1 }), "limits.cost_cap_cents"),
        (json!({ "tool_calls": 1, "iterations": 1 }), "limits.iterations"),
    ] {
        let error = owner.post("/sessions", json!({ "agent": agent, "limits": limits })).await.error(400);
        assert_eq!(error["param"], param);
    }
    let limits = json!({ "cost_cap_cents": 3, "duration_seconds": 9, "iterations": 4 });
    let changed = owner.patch(&format!("/agents/{agent}"), json!({ "limits": limits })).await.ok();
    assert_eq!(changed["limits"], json!({ "cost_micros": 30_000, "duration_seconds": 9, "tool_calls": 4 }));
    let id = start(owner, &agent, json!({ "limits": { "tool_calls": 5 } })).await;
    let limits = json!({ "cost_micros": 30_000, "duration_seconds": 9, "tool_calls": 5 });
    assert_eq!(session(owner, &id).await["limits"], limits);
    scene.close().await;
}
