//! Servers that ask a person before they go on with a call.

use std::time::Duration;

use super::*;
use crate::{
    support::{
        program::Program,
        service::{Ground, KEY},
        wait::wait_for,
    },
    turns::{
        actions::{answer, pending},
        session, wait_until, workspace,
    },
};

fn form(message: &str, properties: Value, required: Value) -> Value {
    json!({ "method": "elicitation/create", "params": {
        "mode": "form", "message": message,
        "requestedSchema": { "type": "object", "properties": properties, "required": required },
    }})
}

fn where_to() -> Value {
    let properties = json!({
        "count": { "type": "integer", "title": "Copies", "minimum": 1, "maximum": 9 },
        "target": { "type": "string", "enum": ["prod", "stage"], "enumNames": ["Production", "Staging"] },
    });
    json!({ "deploy": form("Where to?", properties, json!(["count", "target"])) })
}

/// A server that asks where to, and says what it was told.
async fn asking(and_then: fn(Value) -> Reply) -> McpFake {
    McpFake::stateless(vec![tool("deploy")], move |_, arguments| match arguments.get("inputResponses") {
        None => Reply::Ask(where_to()),
        Some(responses) => and_then(responses.clone()),
    })
    .await
}

fn told(responses: Value) -> Reply {
    Reply::Result(text(&format!("told {}", responses["deploy"])))
}

fn steps() -> Value {
    json!([{ "tools": [call("deploy", "now")] }, { "text": "Done." }])
}

/// The event that answers an action.
fn answers(action: &Value, more: Value) -> Value {
    let mut event = json!({ "type": "user.answer", "action_id": action["id"] });
    event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    json!([event])
}

fn chosen() -> Value {
    json!({ "answers": [{ "text": "3" }, { "labels": ["Staging"] }] })
}

#[tokio::test]
async fn a_server_asks_a_person_and_goes_on_with_the_answers() {
    let scene = Scene::open(&[PRIVATE, "--max-concurrent-turns=1"]).await;
    let owner = &scene.owner;
    let fake = asking(told).await;
    let id = play(owner, json!([server(&fake, json!({}))]), steps()).await;
    let action = pending(owner, &id, 1).await.remove(0);
    assert_eq!(
        (&action["kind"], &action["server"], &action["message"]),
        (&json!("question"), &json!("fake"), &json!("Where to?"))
    );
    let questions = &action["questions"];
    assert_eq!(
        (&questions[0]["question"], &questions[0]["format"]),
        (&json!("Copies"), &json!({ "type": "integer", "minimum": 1, "maximum": 9 }))
    );
    assert_eq!(questions[1]["options"], json!([{ "label": "Production" }, { "label": "Staging" }]));
    assert_eq!(session(owner, &id).await["status"], "awaiting_input");
    // It holds no worker, and a message is no answer to a server.
    let other = owner.play(json!([{ "text": "Free." }])).await;
    owner.settled(&other, 1).await;
    owner.post(&format!("/sessions/{id}/messages"), json!({ "text": "3" })).await.ok();
    for (given, param) in [
        (json!({ "answers": [{ "text": "3" }] }), "answers"),
        (json!({ "answers": [{ "text": "many" }, { "labels": ["Staging"] }] }), "answers[0].text"),
        (json!({ "answers": [{ "text": "12" }, { "labels": ["Staging"] }] }), "answers[0].text"),
        (json!({ "answers": [{ "text": "3" }, { "labels": ["stage"] }] }), "answers[1].labels"),
        (json!({ "answers": [{ "text": "3" }, { "text": "Staging" }] }), "answers[1].text"),
        (json!({ "answers": [{ "text": "3" }], "declined": true }), "answers"),
    ] {
        let error = answer(owner, &id, answers(&action, given)).await.error(400);
        assert_eq!(error["param"], format!("events[0].{param}"), "{error}");
    }
    assert_eq!(answer(owner, &id, answers(&action, chosen())).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let accepted = json!({ "action": "accept", "content": { "count": 3, "target": "stage" } });
    assert_eq!((outputs(&log), outcomes(&log)), (vec![format!("told {accepted}").as_str()], vec!["ran"]));
    let calls = fake.seen("tools/call");
    assert_eq!((calls.len(), fake.refusals()), (2, Vec::<String>::new()));
    assert_eq!(calls[0].params["arguments"], calls[1].params["arguments"], "the same call");
    assert!(!json!(log).to_string().contains("secret-state"), "the state is sealed");
    scene.close().await;
}

#[tokio::test]
async fn a_person_declines_and_one_that_does_not_answer_cancels() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let visit = json!({ "method": "elicitation/create", "params": {
        "mode": "url", "message": "Sign in.", "url": "https://login.example.com/x",
    }});
    let fake =
        McpFake::stateless(vec![tool("deploy")], move |_, arguments| match arguments.get("inputResponses") {
            None => Reply::Ask(json!({ "deploy": visit })),
            Some(responses) => told(responses.clone()),
        })
        .await;
    let servers = json!([server(&fake, json!({}))]);
    let declined = play(owner, servers.clone(), steps()).await;
    let action = pending(owner, &declined, 1).await.remove(0);
    assert_eq!(action["questions"][0]["url"], "https://login.example.com/x");
    assert_eq!(answer(owner, &declined, answers(&action, json!({ "declined": true }))).await.status, 202);
    let log = owner.settled(&declined, 1).await;
    assert_eq!(outputs(&log), [r#"told {"action":"decline"}"#]);

    let accepted = play(owner, servers.clone(), steps()).await;
    let action = pending(owner, &accepted, 1).await.remove(0);
    let accept = json!({ "answers": [{ "labels": ["Accept"] }] });
    assert_eq!(answer(owner, &accepted, answers(&action, accept)).await.status, 202);
    let log = owner.settled(&accepted, 1).await;
    assert_eq!(outputs(&log), [r#"told {"action":"accept","content":{}}"#]);

    let agent = owner.inline_agent().await;
    let body = json!({
        "agent": agent, "mcp_servers": servers, "ask": { "mode": "end_turn", "expires_seconds": 10 },
        "permissions": [{ "tool": "mcp__*", "policy": "allow" }], "input": { "script": steps() },
    });
    let made = owner.post("/sessions", body).await.ok();
    let silent = made["session"]["id"].as_str().expect("an id");
    pending(owner, silent, 1).await;
    let log = owner.settled(silent, 1).await;
    assert_eq!(outputs(&log), [r#"told {"action":"cancel"}"#]);
    assert_eq!(of(&log, "action.closed")[0]["body"]["reason"], "expired");
    // Questions of the agent itself cannot be declined.
    let body = json!({
        "agent": owner.inline_agent().await, "ask": { "mode": "wait" },
        "input": { "script": [{ "tools": [{ "tool": "ask", "input": { "questions": [{ "question": "Who?" }] } }] }] },
    });
    let made = owner.post("/sessions", body).await.ok();
    let asks = made["session"]["id"].as_str().expect("an id");
    let action = pending(owner, asks, 1).await.remove(0);
    let error = answer(owner, asks, answers(&action, json!({ "declined": true }))).await.error(400);
    assert_eq!(error["param"], "events[0].declined");
    scene.close().await;
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_given_up() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let fake = asking(|_| Reply::Ask(where_to())).await;
    let id = play(owner, json!([server(&fake, json!({}))]), steps()).await;
    for _ in 0..8 {
        let action = pending(owner, &id, 1).await.remove(0);
        assert_eq!(answer(owner, &id, answers(&action, chosen())).await.status, 202);
        wait_for("the next question", async || {
            let open = owner.get(&format!("/sessions/{id}/pending")).await.ok();
            (open["data"][0]["id"] != action["id"]).then_some(())
        })
        .await;
    }
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((of(&log, "action.required").len(), outcomes(&log)), (8, vec!["unknown"]));
    assert!(outputs(&log)[0].contains("asked 8 times"), "{}", outputs(&log)[0]);
    assert_eq!(fake.seen("tools/call").len(), 9);
    scene.close().await;
}

#[tokio::test]
async fn a_call_whose_server_asks_is_unknown_when_its_turn_is_canceled() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let fake = asking(told).await;
    let id = play(owner, json!([server(&fake, json!({}))]), steps()).await;
    pending(owner, &id, 1).await;
    owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outcomes(&log), ends(&log)), (vec!["unknown"], vec!["canceled"]));
    assert_eq!(of(&log, "action.closed")[0]["body"]["reason"], "withdrawn");
    scene.close().await;
}

/// The answer that the process gave while no worker ran is the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_asks_gets_the_answer_once() {
    let ground = Ground::new().await;
    let settings = ["--lease-ms=1000"];
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let server = json!({ "name": "fake", "command": ["python3", "-c", include_str!("asking.py")] });
    let id = play(&caller, json!([server]), steps()).await;
    let action = pending(&caller, &id, 1).await.remove(0);
    assert_eq!(action["message"], "Where to?");
    let given = json!({ "answers": [{ "text": "here" }] });
    assert_eq!(answer(&caller, &id, answers(&action, given)).await.status, 202);
    let calls = || std::fs::read_to_string(workspace(&ground).join("seen")).unwrap_or_default();
    wait_until("the call with the answer", || calls() == "call None\ncall first\n").await;
    program.kill();
    std::fs::write(workspace(&ground).join("go"), "").expect("a file");
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let log = caller.settled(&id, 1).await;
    assert_sound(&log);
    let told = r#"{"where": {"action": "accept", "content": {"target": "here"}}}"#;
    assert_eq!((outputs(&log), outcomes(&log)), (vec![told], vec!["ran"]));
    assert_eq!(calls(), "call None\ncall first\n", "no answer is given twice");
    program.kill();
}

/// Killed while the turn waits, when the answer is in the log, and when the server has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_an_answer_once_whenever_the_worker_is_killed() {
    let ground = Ground::new().await;
    let settings = [PRIVATE, "--lease-ms=1000"];
    let fake = asking(|responses| {
        Reply::After(Duration::from_secs(4), text(&format!("told {}", responses["deploy"])))
    })
    .await;
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let id = play(&caller, json!([server(&fake, json!({}))]), steps()).await;
    pending(&caller, &id, 1).await;
    program.kill();
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let action = pending(&caller, &id, 1).await.remove(0);
    assert_eq!(answer(&caller, &id, answers(&action, chosen())).await.status, 202);
    wait_for("the call with the answer", async || (fake.seen("tools/call").len() == 2).then_some(())).await;
    program.kill();
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let log = caller.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outcomes(&log), ends(&log)), (vec!["unknown"], vec!["completed"]));
    assert_eq!(fake.seen("tools/call").len(), 2, "no answer is given twice");

    // A call that may be repeated is.
    let replay = json!({ "replay": { "deploy": "idempotent" } });
    let id = play(&caller, json!([server(&fake, replay)]), steps()).await;
    let action = pending(&caller, &id, 1).await.remove(0);
    assert_eq!(answer(&caller, &id, answers(&action, chosen())).await.status, 202);
    wait_for("the call with the answer", async || (fake.seen("tools/call").len() == 4).then_some(())).await;
    program.kill();
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let log = caller.settled(&id, 1).await;
    assert_eq!(outcomes(&log), ["ran"]);
    assert!(outputs(&log)[0].contains(r#""target":"stage""#), "{}", outputs(&log)[0]);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    program.kill();
}
