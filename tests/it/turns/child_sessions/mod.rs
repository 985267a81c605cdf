//! Tools for child sessions: a turn waits for them without a worker, reads, answers and cancels them.

mod ends;
mod kills;

use serde_json::{Value, json};

use super::{Scene, assert_sound, bash, ends as reasons, of, outputs, script, session, steer};
use crate::support::service::Caller;

const TOOLS: [&str; 5] = ["session_wait", "session_read", "session_message", "session_cancel", "bash"];

/// Creates a session without input whose agent has the tools for child sessions.
async fn parent(owner: &Caller, more: Value) -> String {
    let agent = owner.inline_agent().await;
    let mut body = json!({ "agent": agent, "tools": TOOLS });
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    id_of(&owner.post("/sessions", body).await.ok())
}

/// Starts a session below `parent` that plays `steps`. It can call `check`, which its caller runs.
async fn child(owner: &Caller, parent: &str, steps: Value) -> String {
    let agent = owner.inline_agent().await;
    let check = json!({ "type": "custom", "name": "check", "description": "Checks.",
        "input_schema": { "type": "object" } });
    let body = json!({
        "agent": agent, "parent_session_id": parent, "tools": ["bash", "ask", check],
        "ask": { "mode": "wait" }, "input": { "script": steps },
    });
    id_of(&owner.post("/sessions", body).await.ok())
}

fn id_of(created: &Value) -> String {
    created["session"]["id"].as_str().expect("an id").to_owned()
}

/// A call that blocks until [`release`].
fn check() -> Value {
    json!({ "tools": [{ "tool": "check", "input": {} }] })
}

fn wait(ids: &[&str], more: Value) -> Value {
    let mut input = json!({ "ids": ids });
    input.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    json!({ "tools": [{ "tool": "session_wait", "input": input }] })
}

fn call(tool: &str, input: Value) -> Value {
    json!({ "tools": [{ "tool": tool, "input": input }] })
}

/// Answers the open `check` of a child.
async fn release(owner: &Caller, child: &str) {
    let path = format!("/sessions/{child}/pending");
    let page = owner.until(&path, |page| page["data"][0].is_object()).await;
    let event = json!({ "type": "user.custom_tool_result", "action_id": page["data"][0]["id"],
        "content": [{ "type": "text", "text": "fine" }] });
    let sent = owner.post(&format!("/sessions/{child}/events"), json!({ "events": [event] })).await;
    assert_eq!(sent.status, 202);
}

/// Waits until the turn of a session waits for others.
async fn waits(owner: &Caller, id: &str) -> Value {
    owner.until(&format!("/sessions/{id}"), |session| session["phase"] == "waiting_for_sessions").await
}

/// Waits until a child waits for a caller.
async fn asks(owner: &Caller, child: &str) {
    owner.until(&format!("/sessions/{child}"), |session| session["phase"] == "requires_action").await;
}

/// Results of the calls of a turn, as the model reads them.
fn results(log: &[Value]) -> Vec<Value> {
    outputs(log).into_iter().map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text))).collect()
}

#[tokio::test]
async fn a_turn_waits_for_children_and_holds_nothing() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let one = child(owner, &top, json!([check(), { "text": "One." }])).await;
    let two = child(owner, &top, json!([{ "text": "Two." }])).await;
    owner.settled(&two, 1).await;
    steer(owner, &top, &script(json!([wait(&[&one, &two], json!({})), { "text": "Both." }]))).await;
    let seen = waits(owner, &top).await;
    assert_eq!((&seen["status"], &seen["last_turn"]["state"]), (&json!("running"), &json!("waiting")));
    assert_eq!(seen.get("next_attempt_at"), None);
    let metrics = scene.service.metrics().await;
    assert_eq!((metrics["sojourn_jobs_held"], metrics["sojourn_turns{state=\"waiting\"}"]), (0.0, 2.0));
    let pending = owner.get(&format!("/sessions/{top}/pending?children=true")).await.ok();
    assert_eq!(pending["data"][0]["session_id"], json!(one), "the child's call is seen from above");

    release(owner, &one).await;
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let waiting = of(&log, "turn.waiting");
    let bodies: Vec<_> =
        waiting.iter().map(|event| (&event["body"]["session_ids"], &event["body"]["action_ids"])).collect();
    assert!(bodies.iter().all(|body| *body == (&json!([one]), &json!([]))), "{bodies:?}");
    // Once when the child waits, and once when it ends.
    assert!((1..=3).contains(&waiting.len()), "{waiting:?}");
    assert!(of(&log, "turn.resumed").iter().all(|event| event["body"]["waited_ms"] == 0));
    let report = |id: &str, text: &str| {
        json!({
            "session_id": id, "status": "idle", "yield_reason": "completed", "text": text,
        })
    };
    let expected = json!({ "sessions": [report(&one, "One."), report(&two, "Two.")], "timed_out": false });
    assert_eq!(results(&log), [expected]);
    assert_eq!((reasons(&log), of(&log, "turn.started").len()), (vec!["completed"], 1));
    scene.close().await;
}

#[tokio::test]
async fn a_child_that_asks_is_answered_by_the_session_above() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let ask =
        json!({ "tools": [{ "tool": "ask", "input": { "questions": [{ "question": "Where to?" }] } }] });
    let curious = child(owner, &top, json!([ask, { "text": "Gone." }])).await;
    let quiet = child(owner, &top, json!([check(), { "text": "Quiet." }])).await;
    asks(owner, &quiet).await;
    let steps = json!([
        wait(&[&curious, &quiet], json!({})),
        call("session_message", json!({ "id": curious, "text": "There." })),
        wait(&[&curious], json!({})),
        call("session_read", json!({ "id": curious })),
        { "text": "Done." },
    ]);
    steer(owner, &top, &script(steps)).await;
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let results = results(&log);
    let asked = &results[0]["sessions"];
    assert_eq!(
        (&asked[0]["questions"][0]["question"], &asked[1]["status"]),
        (&json!("Where to?"), &json!("awaiting_input"))
    );
    assert_eq!(results[1], "The message answers the question of the session.");
    assert_eq!(results[2]["sessions"][0]["text"], "Gone.");
    let read: Vec<_> =
        results[3]["events"].as_array().expect("events").iter().map(|event| event["type"].clone()).collect();
    assert_eq!(read, ["user.message", "action.required", "agent.message", "turn.completed"]);
    assert_eq!((&results[3]["status"], &results[3]["has_more"]), (&json!("idle"), &json!(false)));
    let child = crate::turns::log(owner, &curious).await;
    let answer = of(&child, "user.answer");
    assert_eq!(
        (answer.len(), &answer[0]["actor"]["type"], &answer[0]["actor"]["id"]),
        (1, &json!("agent"), &json!(top))
    );
    release(owner, &quiet).await;
    owner.settled(&quiet, 1).await;
    scene.close().await;
}

#[tokio::test]
async fn a_wait_ends_with_any_child_or_with_its_time() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let one = child(owner, &top, json!([check(), { "text": "One." }])).await;
    let two = child(owner, &top, json!([check(), { "text": "Two." }])).await;
    for id in [&one, &two] {
        asks(owner, id).await;
    }
    let steps = json!([
        wait(&[&one, &two], json!({ "timeout_seconds": 1 })),
        wait(&[&one, &two], json!({ "any": true })),
        { "text": "Done." },
    ]);
    steer(owner, &top, &script(steps)).await;
    owner.follow(&top, |event| event["type"] == "tool.result").await;
    waits(owner, &top).await;
    release(owner, &two).await;
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let results = results(&log);
    let states =
        |result: &Value| [result["sessions"][0]["status"].clone(), result["sessions"][1]["status"].clone()];
    assert_eq!(
        (&results[0]["timed_out"], states(&results[0])),
        (&json!(true), ["awaiting_input", "awaiting_input"].map(Value::from))
    );
    assert_eq!(
        (&results[1]["timed_out"], states(&results[1])),
        (&json!(false), ["awaiting_input", "idle"].map(Value::from))
    );
    release(owner, &one).await;
    owner.settled(&one, 1).await;
    scene.close().await;
}

#[tokio::test]
async fn only_sessions_below_are_reached() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let below = child(owner, &top, json!([{ "text": "Below." }])).await;
    let low = child(owner, &below, json!([{ "text": "Low." }])).await;
    let other = parent(owner, json!({})).await;
    for id in [&below, &low] {
        owner.settled(id, 1).await;
    }
    let inputs = [&top, &other, "ses_nothing"];
    let calls = inputs.iter().flat_map(|id| {
        [wait(&[id], json!({}))].into_iter().chain(
            [
                ("session_read", json!({ "id": id })),
                ("session_cancel", json!({ "id": id })),
                ("session_message", json!({ "id": id, "text": "Hello." })),
            ]
            .map(|(tool, input)| call(tool, input)),
        )
    });
    let steps: Vec<_> =
        calls.chain([call("session_read", json!({ "id": low })), json!({ "text": "Done." })]).collect();
    steer(owner, &top, &script(json!(steps))).await;
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let outputs = outputs(&log);
    let (told, last) = outputs.split_at(12);
    for (at, words) in told.iter().enumerate() {
        assert_eq!(*words, format!("There is no session `{}` below this one.", inputs[at / 4]));
    }
    assert!(last[0].contains("Low."), "{last:?}");
    assert_eq!(session(owner, &other).await["head"], 1, "nothing happened there");
    // Nobody has the tools who does not name them.
    let plain = owner.play(json!([wait(&[&low], json!({})), { "text": "No." }])).await;
    let refused = owner.settled(&plain, 1).await;
    assert!(super::outputs(&refused)[0].starts_with("There is no tool `session_wait`."));
    scene.close().await;
}

#[tokio::test]
async fn the_time_of_a_turn_goes_on_while_it_waits_for_children() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({ "limits": { "turn_seconds": 2 } })).await;
    let one = child(owner, &top, json!([check(), { "text": "One." }])).await;
    steer(owner, &top, &script(json!([wait(&[&one], json!({})), { "text": "Never." }]))).await;
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    assert_eq!((reasons(&log), results(&log).len()), (vec!["deadline_exceeded"], 1));
    assert_eq!(of(&log, "limit.exceeded")[0]["body"]["limit"], "turn_seconds");
    assert!(
        of(&log, "turn.completed")[0]["body"]["active_seconds"].as_u64().is_some_and(|seconds| seconds >= 2)
    );
    release(owner, &one).await;
    owner.settled(&one, 1).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_end_of_a_child_is_missed() {
    const ROUNDS: usize = 40;
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    for round in 0..ROUNDS {
        let top = parent(owner, json!({})).await;
        let steps = json!([run_for(round), { "text": "Done." }]);
        let (one, two) =
            tokio::join!(child(owner, &top, steps), child(owner, &top, json!([{ "text": "Two." }])));
        let steps = json!([wait(&[&one, &two], json!({ "timeout_seconds": 600 })), { "text": "Both." }]);
        steer(owner, &top, &script(steps)).await;
        let log = owner.settled(&top, 1).await;
        assert_sound(&log);
        assert_eq!(results(&log)[0]["timed_out"], false);
    }
    scene.close().await;
}

/// A step whose length differs from round to round; most need no sandbox.
fn run_for(round: usize) -> Value {
    match round % 8 {
        0 => json!({ "tools": [bash("sleep 0.1")] }),
        steps => {
            json!({ "delay_ms": steps * 5, "tools": [{ "tool": "read", "input": { "path": "/none" } }] })
        }
    }
}

#[tokio::test]
async fn a_session_further_below_ends_a_wait_and_so_does_its_deletion() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let middle = parent(owner, json!({ "parent_session_id": top })).await;
    let low = child(owner, &middle, json!([check(), { "text": "Low." }])).await;
    let gone = child(owner, &middle, json!([check(), { "text": "Never." }])).await;
    let steps = json!([wait(&[&low], json!({})), wait(&[&gone], json!({})), { "text": "Done." }]);
    steer(owner, &top, &script(steps)).await;
    waits(owner, &top).await;
    release(owner, &low).await;
    owner.follow(&top, |event| event["type"] == "tool.result").await;
    let waiting_for = |session: &Value| session["phase"] == "waiting_for_sessions";
    owner.until(&format!("/sessions/{top}"), waiting_for).await;
    owner.until(&format!("/sessions/{gone}"), |session| session["phase"] == "requires_action").await;
    assert_eq!(owner.delete(&format!("/sessions/{gone}")).await.status, 204);
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let results = results(&log);
    assert_eq!(results[0]["sessions"][0]["text"], "Low.");
    assert_eq!(results[1], format!("There is no session `{gone}` below this one."));
    scene.close().await;
}

#[tokio::test]
async fn a_deleted_child_is_reported_beside_the_others() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let stays = child(owner, &top, json!([check(), { "text": "Low." }])).await;
    let gone = child(owner, &top, json!([check(), { "text": "Never." }])).await;
    steer(owner, &top, &script(json!([wait(&[&gone, &stays], json!({})), { "text": "Done." }]))).await;
    waits(owner, &top).await;
    owner.until(&format!("/sessions/{gone}"), |session| session["phase"] == "requires_action").await;
    assert_eq!(owner.delete(&format!("/sessions/{gone}")).await.status, 204);
    release(owner, &stays).await;
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let reports = &results(&log)[0]["sessions"];
    assert_eq!((&reports[0]["session_id"], &reports[0]["text"]), (&json!(stays), &json!("Low.")));
    assert_eq!(
        (&reports[1]["session_id"], &reports[1]["error"]["code"]),
        (&json!(gone), &json!("not_found"))
    );
    scene.close().await;
}

#[tokio::test]
async fn a_message_of_an_agent_does_not_start_what_a_caller_has_stopped() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let low = child(owner, &top, json!([{ "text": "Low." }])).await;
    owner.settled(&low, 1).await;
    owner.post(&format!("/sessions/{low}/stop"), json!({})).await.ok();
    let message =
        call("session_message", json!({ "id": low, "text": script(json!([{ "text": "Again." }])) }));
    steer(owner, &top, &script(json!([message.clone(), { "text": "Done." }]))).await;
    let log = owner.settled(&top, 1).await;
    let refused = results(&log)[0].as_str().expect("words").to_owned();
    assert!(refused.starts_with("The session did not take it: "), "{refused}");
    assert_eq!(
        crate::turns::log(owner, &low).await.iter().filter(|event| event["type"] == "user.message").count(),
        1
    );
    // Once it is started, it takes messages.
    owner.post(&format!("/sessions/{low}/start"), json!({})).await.ok();
    steer(owner, &top, &script(json!([message, { "text": "Done." }]))).await;
    assert_eq!(results(&owner.settled(&top, 2).await)[1], "The message was sent.");
    owner.settled(&low, 2).await;
    scene.close().await;
}

#[tokio::test]
async fn a_question_that_is_left_alone_ends_the_wait_of_the_session_that_can_answer_it() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let ask = |question: &str| json!({ "tool": "ask", "input": { "questions": [{ "question": question }] } });
    let low = child(owner, &top, json!([{ "tools": [ask("One?"), ask("Two?")] }, { "text": "Low." }])).await;
    steer(owner, &top, &script(json!([wait(&[&low], json!({})), { "text": "Done." }]))).await;
    waits(owner, &top).await;
    let page = owner.until(&format!("/sessions/{low}/pending"), |page| page["data"][1].is_object()).await;
    let answer =
        json!({ "type": "user.answer", "action_id": page["data"][0]["id"], "answers": [{ "text": "a" }] });
    owner.post(&format!("/sessions/{low}/events"), json!({ "events": [answer] })).await.ok();
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    assert_eq!(results(&log)[0]["sessions"][0]["questions"].as_array().map(Vec::len), Some(1));
    scene.close().await;
}

#[tokio::test]
async fn questions_that_the_session_above_cannot_answer_do_not_end_its_wait() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let options = json!([{ "question": "Which?", "options": [{ "label": "a" }], "free_text": false }]);
    let ask = json!({ "tools": [{ "tool": "ask", "input": { "questions": options } }] });
    let low = child(owner, &top, json!([ask, { "text": "Low." }])).await;
    steer(owner, &top, &script(json!([wait(&[&low], json!({})), { "text": "Done." }]))).await;
    waits(owner, &top).await;
    let page = owner.until(&format!("/sessions/{low}/pending"), |page| page["data"][0].is_object()).await;
    let answer = json!({ "type": "user.answer", "action_id": page["data"][0]["id"], "answers": [{ "labels": ["a"] }] });
    let sent = owner.post(&format!("/sessions/{low}/events"), json!({ "events": [answer] })).await;
    assert_eq!(sent.status, 202);
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    assert_eq!(results(&log)[0]["sessions"][0]["text"], "Low.");
    // A child that waits wakes nobody, so there was one wait.
    assert_eq!(of(&log, "turn.waiting").len(), 1);
    scene.close().await;
}
