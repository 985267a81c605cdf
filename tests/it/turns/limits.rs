//! Limits: each ends the turn with its own reason, none ends the session.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Scene, appears, assert_sound, ends, last_turn, of, outputs, run, script, session, steer};
use crate::{
    fake::{Fake, Fault, Step, Used, anthropic::Anthropic},
    support::service::Caller,
};

/// Creates a session with limits that plays a script.
async fn play(owner: &Caller, limits: Value, script: Value) -> String {
    let agent = owner.inline_agent().await;
    let session = json!({ "agent": agent, "limits": limits, "input": { "script": script } });
    owner.post("/sessions", session).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

async fn raise(owner: &Caller, id: &str, limits: Value) {
    owner.patch(&format!("/sessions/{id}"), json!({ "limits": limits })).await.ok();
}

fn spends(tokens: u64, step: Value) -> Value {
    let mut step = step;
    step["usage"] = json!({ "input_tokens": tokens - 1, "output_tokens": 1 });
    step
}

/// `limit.exceeded` of the last turn: limit, used, allowed.
#[track_caller]
fn exceeded(log: &[Value]) -> (&str, u64, u64) {
    let body = &of(log, "limit.exceeded").last().expect("one limit was exceeded")["body"];
    let number = |name: &str| body[name].as_u64().expect("a number");
    (body["limit"].as_str().expect("a name"), number("used"), number("allowed"))
}

#[tokio::test]
async fn tokens_stop_the_tools_of_the_answer_that_used_them_up_and_can_be_raised() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([
        spends(60, json!({ "tools": [{ "tool": "glob", "input": { "pattern": "*" } }] })),
        spends(60, run("touch ran")),
        { "text": "Never." },
    ]);
    let id = play(owner, json!({ "tokens": 100 }), steps).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["budget_exceeded"]);
    assert_eq!(exceeded(&log), ("tokens", 120, 100));
    assert_eq!(of(&log, "turn.completed")[0]["body"]["limit"], "tokens");
    assert!(outputs(&log)[1].contains("did not run"), "{:?}", outputs(&log));
    assert_eq!(of(&log, "exec.completed").len(), 0);
    assert_eq!(session(owner, &id).await["status"], "idle");

    // Used up: the next turn ends before it starts, and its input is consumed.
    let refused = steer(owner, &id, "Go on.").await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(ends(&log), ["budget_exceeded", "budget_exceeded"]);
    assert_eq!(of(&log, "turn.started").len(), 1);
    assert_eq!(session(owner, &id).await["input_cursor"], refused);

    raise(owner, &id, json!({ "tokens": 1_000 })).await;
    steer(owner, &id, &script(json!([spends(10, json!({ "text": "On we go." }))]))).await;
    let log = owner.settled(&id, 3).await;
    assert_sound(&log);
    assert_eq!(ends(&log)[2], "completed");
    assert_eq!(session(owner, &id).await["usage"]["input_tokens"], 59 + 59 + 9);
    scene.close().await;
}

#[tokio::test]
async fn a_model_call_asks_for_no_more_tokens_than_are_left() {
    let used = Used { input: 700, output: 50, cache_write: 30, cache_read: 20 };
    let steps = [
        Step::default().and_tool("glob", json!({ "pattern": "*" })).using(used),
        Step::text("Done.").using(Used { input: 100, output: 10, cache_write: 0, cache_read: 0 }),
    ];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let agent = json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test",
        "model_options": { "max_tokens": 900 }, "limits": { "tokens": 1_000 } });
    scene.owner.post("/agents", agent).await.ok();
    let created = scene.owner.post("/sessions", json!({ "agent": "fake", "input": "Go." })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id");
    let log = scene.owner.settled(id, 1).await;
    assert_eq!(ends(&log), ["completed"]);
    let asked: Vec<_> = fake.requests().iter().map(|request| request.body["max_tokens"].clone()).collect();
    assert_eq!(asked, [json!(900), json!(200)]);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn a_limit_that_changes_while_a_turn_runs_binds_its_next_call() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let waits = "touch ready; until [ -e go ]; do sleep 0.05; done; rm go ready";
    let id = play(
        owner,
        json!({ "steps": 1 }),
        json!([run(waits), run(waits), run("true"), { "text": "Never." }]),
    )
    .await;
    appears(&scene.ground, "ready").await;
    raise(owner, &id, json!({ "steps": 5 })).await;
    std::fs::write(super::workspace(&scene.ground).join("go"), "").expect("a file");
    super::until(owner, &id, "exec.completed").await;
    appears(&scene.ground, "ready").await;
    // Lower than the current usage.
    raise(owner, &id, json!({ "steps": 1 })).await;
    std::fs::write(super::workspace(&scene.ground).join("go"), "").expect("a file");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), exceeded(&log)), (vec!["max_turns"], ("steps", 2, 1)));
    scene.close().await;
}

#[tokio::test]
async fn steps_end_one_turn_and_the_next_goes_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let look = json!({ "tools": [{ "tool": "glob", "input": { "pattern": "*" } }], "repeat": 9 });
    let id = play(owner, json!({ "steps": 2 }), json!([look])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), exceeded(&log)), (vec!["max_turns"], ("steps", 2, 2)));
    assert_eq!(of(&log, "step.completed").len(), 2);
    steer(owner, &id, &script(json!([{ "text": "A new turn has its own steps." }]))).await;
    assert_eq!(ends(&owner.settled(&id, 2).await)[1], "completed");
    scene.close().await;
}

#[tokio::test]
async fn turns_refuse_the_next_one_until_they_are_raised() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, json!({ "turns": 1 }), json!([{ "text": "One." }])).await;
    owner.settled(&id, 1).await;
    steer(owner, &id, "Two.").await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((ends(&log), exceeded(&log)), (vec!["completed", "max_turns"], ("turns", 1, 1)));
    let refused = last_turn(owner, &id).await;
    assert_eq!((refused["state"].as_str(), refused["attempt"].as_i64()), (Some("ok"), Some(0)));
    raise(owner, &id, json!({ "turns": 2 })).await;
    steer(owner, &id, "Three.").await;
    assert_eq!(ends(&owner.settled(&id, 3).await)[2], "completed");
    scene.close().await;
}

/// Duration of a turn in seconds, by its own timestamps.
fn took(turn: &Value) -> f64 {
    let at = |name: &str| {
        let text = turn[name].as_str().expect("a time");
        time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).expect("RFC 3339")
    };
    (at("completed_at") - at("started_at")).as_seconds_f64()
}

#[tokio::test]
async fn a_deadline_ends_a_tool_and_all_that_it_started() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let mark = format!("late-{}", std::process::id());
    let command = format!("trap '' TERM; exec -a {mark} sleep 600");
    let id = play(owner, json!({ "turn_seconds": 1 }), json!([run(&command), { "text": "Never." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(super::processes(&mark), 0);
    assert_sound(&log);
    assert_eq!(ends(&log), ["deadline_exceeded"]);
    assert_eq!(of(&log, "turn.completed")[0]["body"]["limit"], "turn_seconds");
    assert_eq!(exceeded(&log).0, "turn_seconds");
    let took = took(&last_turn(owner, &id).await);
    // The grace period of the kill is within the two seconds of overshoot, on an idle machine.
    assert!((1.0..5.0).contains(&took), "{took} s");
    scene.close().await;
}

#[tokio::test]
async fn a_deadline_ends_a_stalled_model_call_and_can_be_moved_while_it_waits() {
    let fake = Fake::script(Anthropic::default(), [Step::fault(Fault::StallAfter(200))]).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let agent = json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test",
        "limits": { "turn_seconds": 1 } });
    owner.post("/agents", agent).await.ok();
    let created = owner.post("/sessions", json!({ "agent": "fake", "input": "Go." })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id");
    let began = Instant::now();
    fake.called(1).await;
    raise(owner, id, json!({ "turn_seconds": 3 })).await;
    let log = owner.settled(id, 1).await;
    fake.hung_up(1).await;
    assert_eq!(ends(&log), ["deadline_exceeded"]);
    assert!(began.elapsed() > Duration::from_secs(2), "the limit was raised in time");
    assert_eq!(exceeded(&log), ("turn_seconds", 3, 3));
    let took = took(&last_turn(owner, id).await);
    assert!((3.0..5.0).contains(&took), "{took} s");
    scene.close().await;
}

#[tokio::test]
async fn changes_of_different_limits_at_once_all_last() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = play(owner, json!({}), json!([])).await;
    for round in 1..=8 {
        let changes = ["tokens", "turns", "steps", "turn_seconds"]
            .map(|name| raise(owner, &id, json!({ name: round })));
        futures::future::join_all(changes).await;
        let limits = json!({ "tokens": round, "turn_seconds": round, "turns": round, "steps": round });
        assert_eq!(session(owner, &id).await["limits"], limits);
    }
    scene.close().await;
}
