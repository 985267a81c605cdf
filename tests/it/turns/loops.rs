//! Calls that the model makes again and again.

use serde_json::{Value, json};

use super::{Scene, assert_sound, bash, ends, of, outputs, script, steer};
use crate::support::service::Caller;

async fn play(owner: &Caller, more: Value, steps: Value) -> String {
    let agent = json!({ "name": "looping", "prompt": "", "model": "scripted/inline" });
    let agent = owner.post("/agents", agent).await.ok();
    let mut body = json!({ "agent": agent["id"], "input": { "script": steps } });
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

fn calls(commands: &str) -> Value {
    let mut steps: Vec<_> =
        commands.split(' ').map(|name| json!({ "tools": [bash(&format!("echo {name}"))] })).collect();
    steps.push(json!({ "text": "Done." }));
    json!(steps)
}

/// The only open action, once the turn waits for it.
async fn pending(owner: &Caller, id: &str, but: Option<&Value>) -> Value {
    let is_there = |page: &Value| {
        page["data"].as_array().is_some_and(|open| open.len() == 1 && Some(&open[0]["id"]) != but)
    };
    let page = owner.until(&format!("/sessions/{id}/pending"), is_there).await;
    owner.until(&format!("/sessions/{id}"), |session| session["phase"] == "requires_action").await;
    page["data"][0].clone()
}

async fn decide(owner: &Caller, id: &str, action: &Value, decision: &str) {
    let event = json!({
        "type": "user.tool_confirmation", "action_id": action["id"], "decision": decision, "args_hash": action["args_hash"],
    });
    owner.post(&format!("/sessions/{id}/events"), json!({ "events": [event] })).await.ok();
}

fn code(log: &[Value]) -> Value {
    of(log, "turn.completed").last().expect("an end")["body"]["error"]["code"].clone()
}

#[tokio::test]
async fn the_third_equal_call_asks_and_a_confirmation_counts_anew() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, json!({}), calls("a b b b b b b c")).await;
    let first = pending(owner, &id, None).await;
    assert_eq!((&first["kind"], &first["reason"]), (&json!("confirmation"), &json!("loop")));
    assert_eq!(first.get("always"), None);
    decide(owner, &id, &first, "once").await;
    let second = pending(owner, &id, Some(&first["id"])).await;
    decide(owner, &id, &second, "once").await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(outputs(&log), ["a\n", "b\n", "b\n", "b\n", "b\n", "b\n", "b\n", "c\n"]);
    let repeats: Vec<_> =
        of(&log, "tool.call").iter().map(|event| event["body"]["repeats"].clone()).collect();
    let loops = json!({ "calls": 1, "times": 3 });
    assert_eq!(repeats.iter().filter(|repeats| **repeats == loops).count(), 2);
    assert_eq!((&repeats[3], &repeats[6]), (&loops, &loops));
    scene.close().await;
}

#[tokio::test]
async fn a_second_loop_after_a_rejection_ends_the_turn_before_the_call_runs() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, json!({}), calls("a b a b a b c c c never")).await;
    let action = pending(owner, &id, None).await;
    assert_eq!(action["input"]["command"], "echo b");
    decide(owner, &id, &action, "reject").await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), code(&log)), (vec!["error"], json!("doom_loop")));
    let calls = of(&log, "tool.call");
    assert_eq!(calls[5]["body"]["repeats"], json!({ "calls": 2, "times": 3 }));
    assert_eq!(calls[8]["body"]["repeats"], json!({ "calls": 1, "times": 3, "ends_turn": true }));
    let results = of(&log, "tool.result");
    let outcomes: Vec<_> =
        results.iter().map(|event| event["body"]["outcome"].as_str().expect("an outcome")).collect();
    assert_eq!((outcomes[5], outcomes[8], outcomes.len()), ("not_run", "not_run", 9));
    // The next message goes on.
    steer(owner, &id, &script(json!([{ "text": "Another way." }]))).await;
    assert_eq!(ends(&owner.settled(&id, 2).await), ["error", "completed"]);
    scene.close().await;
}

#[tokio::test]
async fn settings_stop_at_once_or_look_away() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let id =
        play(owner, json!({ "doom_loop": { "policy": "stop", "repeats": 2 } }), calls("a a never")).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((code(&log), outputs(&log)[0]), (json!("doom_loop"), "a\n"));
    assert_eq!(scene.service.metrics().await["sojourn_loops_total{outcome=\"ended\"}"], 1.0);
    let message =
        of(&log, "turn.completed")[0]["body"]["error"]["message"].as_str().expect("words").to_owned();
    assert!(message.starts_with("the agent made the same call 2 times in a row"), "{message}");

    let id = play(owner, json!({ "doom_loop": { "policy": "off" } }), calls("a a a a a a a")).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!((ends(&log), outputs(&log).len()), (vec!["completed"], 7));

    // Three equal calls at once are a loop too.
    let id = play(
        owner,
        json!({ "doom_loop": { "policy": "stop" } }),
        json!([{ "tools": [bash("ls"), bash("ls"), bash("ls")] }]),
    )
    .await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((code(&log), of(&log, "tool.result").len()), (json!("doom_loop"), 3));

    // What no person can let run does not ask; it is counted.
    let unknown = |name: &str| json!({ "tools": [{ "tool": "no_such_tool", "input": { "name": name } }] });
    let steps: Vec<_> = ["a", "a", "a", "b", "b", "b", "c"].map(unknown).into();
    let id = play(owner, json!({}), json!(steps)).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((code(&log), of(&log, "tool.call").len()), (json!("doom_loop"), 6));
    assert_eq!(of(&log, "action.required").len(), 0);

    for (loops, param) in
        [(json!({ "repeats": 1 }), "doom_loop"), (json!({ "policy": "never" }), "doom_loop.policy")]
    {
        let error = owner.post(
            "/agents",
            json!({ "name": "x", "prompt": "", "model": "scripted/inline", "doom_loop": loops }),
        );
        let error = error.await.error(400);
        assert!(error["param"].as_str().is_some_and(|named| named.starts_with(param)), "{error}");
    }
    scene.close().await;
}
