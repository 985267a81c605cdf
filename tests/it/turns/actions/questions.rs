//! Questions within a turn: the turn waits for the answers, which are the result of the call.

use serde_json::{Value, json};

use super::{answer, pending};
use crate::{
    support::service::Caller,
    turns::{Scene, assert_sound, ends, log, of, outputs, script, session, steer},
};

/// A call of `ask` with these questions.
fn questions(questions: &Value) -> Value {
    json!({ "tool": "ask", "input": { "questions": questions } })
}

fn where_to() -> Value {
    json!({ "question": "Where to?", "header": "Target", "options": [
        { "label": "staging", "description": "Nobody sees it." }, { "label": "production" },
    ] })
}

/// Plays a script with these settings of questions.
pub(super) async fn play(owner: &Caller, ask: Value, steps: Value) -> String {
    let agent = owner.inline_agent().await;
    let body = json!({ "agent": agent, "ask": ask, "input": { "script": steps } });
    let made = owner.post("/sessions", body).await.ok();
    assert_eq!(made["session"]["agent_snapshot"]["ask"]["mode"], ask["mode"]);
    made["session"]["id"].as_str().expect("an id").to_owned()
}

/// The event that answers an action.
pub(super) fn answers(action: &Value, answers: Value) -> Value {
    json!([{ "type": "user.answer", "action_id": action["id"], "answers": answers }])
}

#[tokio::test]
async fn a_turn_waits_for_answers_that_fit_and_the_model_reads_them() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let when = json!({ "question": "When?", "options": [{ "label": "now" }, { "label": "later" }],
        "multiple": true, "free_text": false });
    let steps = json!([{ "tools": [questions(&json!([where_to(), when]))] }, { "text": "Done." }]);
    let id = play(owner, json!({ "mode": "wait", "expires_seconds": 3_600 }), steps).await;
    let action = pending(owner, &id, 1).await.remove(0);
    assert_eq!((&action["kind"], &action["tool"]), (&json!("question"), &json!("ask")));
    assert_eq!(action["questions"][0]["options"][0]["description"], "Nobody sees it.");
    assert_eq!(
        (&action["questions"][0]["free_text"], &action["questions"][1]["multiple"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(session(owner, &id).await["status"], "awaiting_input");
    assert_eq!(owner.get("/pending?kind=question").await.ok()["data"][0]["id"], action["id"]);

    for (given, param) in [
        (json!([{ "labels": ["staging"] }]), "answers"),
        (json!([{ "labels": ["elsewhere"] }, { "labels": ["now"] }]), "answers[0].labels"),
        (json!([{ "labels": ["staging", "production"] }, { "labels": ["now"] }]), "answers[0].labels"),
        (json!([{}, { "labels": ["now"] }]), "answers[0].labels"),
        (json!([{ "labels": ["staging"] }, { "text": "soon" }]), "answers[1].text"),
        (json!([{ "labels": ["staging"] }, { "labels": ["now", "now"] }]), "answers[1].labels"),
    ] {
        let error = answer(owner, &id, answers(&action, given)).await.error(400);
        assert_eq!(error["param"], format!("events[0].{param}"), "{error}");
    }
    let confirmation =
        json!([{ "type": "user.tool_confirmation", "action_id": action["id"], "decision": "once" }]);
    assert_eq!(answer(owner, &id, confirmation).await.error(400)["param"], "events[0]");

    let given = json!([{ "labels": ["staging"], "text": "the new one" }, { "labels": ["now", "later"] }]);
    assert_eq!(answer(owner, &id, answers(&action, given.clone())).await.status, 202);
    assert_eq!(
        answer(owner, &id, answers(&action, given.clone())).await.status,
        200,
        "the same answers again"
    );
    let other = json!([{ "labels": ["production"] }, { "labels": ["now"] }]);
    assert_eq!(answer(owner, &id, answers(&action, other)).await.error(409)["code"], "action_resolved");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log), ["1. staging: the new one\n2. now, later"]);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(of(&log, "user.answer")[0]["body"]["answers"], given);
    scene.close().await;
}

#[tokio::test]
async fn a_message_answers_a_single_question_unless_it_says_otherwise() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let wait = || json!({ "mode": "wait" });
    let one = json!([{ "tools": [questions(&json!([where_to()]))] }, { "text": "Done." }]);
    let id = play(owner, wait(), one.clone()).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let path = format!("/sessions/{id}/messages");
    let queued = json!({ "text": script(json!([{ "text": "Next." }])), "mode": "queue" });
    owner.post(&path, queued).await.ok();
    assert_eq!(pending(owner, &id, 1).await[0]["id"], action["id"], "it waits for the next turn");
    steer(owner, &id, "to the moon").await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((outputs(&log), of(&log, "user.message").len()), (vec!["to the moon"], 2));
    let answered = &of(&log, "user.answer")[0]["body"];
    assert_eq!(answered["answers"], json!([{ "text": "to the moon" }]));

    // Two questions, a text that is not offered, a claim of another caller: the message waits.
    let closed = json!({ "question": "Sure?", "options": [{ "label": "yes" }], "free_text": false });
    for (asked, claims) in
        [(json!([where_to(), where_to()]), false), (json!([closed]), false), (json!([where_to()]), true)]
    {
        let id = play(owner, wait(), json!([{ "tools": [questions(&asked)] }, { "text": "Done." }])).await;
        let action = pending(owner, &id, 1).await.remove(0);
        if claims {
            let path = format!("/sessions/{id}/pending/{}/claim", action["id"].as_str().expect("an id"));
            owner.post(&path, json!({})).await.ok();
        }
        let event = json!([{ "type": "user.message", "text": script(json!([{ "text": "Next." }])) }]);
        assert_eq!(answer(owner, &id, event).await.ok()["data"][0]["type"], "user.message", "{asked}");
        owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    }

    // By `POST /events` too.
    let id = play(owner, wait(), one).await;
    pending(owner, &id, 1).await;
    let sent = answer(owner, &id, json!([{ "type": "user.message", "text": "there" }])).await.ok();
    assert_eq!(sent["data"][0]["type"], "user.answer");
    assert_eq!(outputs(&owner.settled(&id, 1).await), ["there"]);
    scene.close().await;
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_told_and_one_that_does_not_fit_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [questions(&json!([where_to()]))] }, { "text": "Nobody knows." }]);
    let id = play(owner, json!({ "mode": "wait", "expires_seconds": 10 }), steps).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let log_of = owner.settled(&id, 1).await;
    assert_sound(&log_of);
    assert_eq!(of(&log_of, "tool.result")[0]["body"]["outcome"], "not_run");
    assert_eq!(ends(&log_of), ["completed"]);
    let late = answer(owner, &id, answers(&action, json!([{ "labels": ["staging"] }]))).await;
    assert_eq!(late.error(409)["code"], "action_expired");

    let bad = [
        json!({ "question": "Where to?" }),
        json!({ "questions": [] }),
        json!({ "questions": [{ "question": "x".repeat(13_000) }] }),
        json!({ "questions": [{ "question": "Where to?", "options": ["staging"] }] }),
    ];
    let calls: Vec<_> = bad.iter().map(|input| json!({ "tool": "ask", "input": input })).collect();
    let id = play(owner, json!({ "mode": "wait" }), json!([{ "tools": calls }, { "text": "Done." }])).await;
    let log_of = owner.settled(&id, 1).await;
    assert_sound(&log_of);
    assert_eq!((of(&log_of, "action.required").len(), ends(&log_of)), (0, vec!["completed"]));
    assert!(of(&log_of, "tool.result").iter().all(|event| event["body"]["outcome"] == "not_run"));
    assert!(outputs(&log_of)[2].contains("at most 12000"), "{log_of:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_session_and_a_patch_change_how_an_agent_asks() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent =
        json!({ "name": "asking", "prompt": "", "model": "scripted/inline", "ask": { "mode": "wait" } });
    let made = owner.post("/agents", agent.clone()).await.ok();
    assert_eq!(made["ask"], json!({ "mode": "wait" }));
    assert_eq!(owner.post("/agents", agent).await.status, 200, "the same agent");
    let path = format!("/agents/{}", made["id"].as_str().expect("an id"));
    for ask in [json!({ "mode": "never" }), json!({ "mode": "wait", "expires_seconds": 9 }), json!("wait")] {
        let error = owner.patch(&path, json!({ "ask": ask })).await.error(400);
        assert!(error["param"].as_str().is_some_and(|param| param.starts_with("ask")), "{error}");
    }

    // The session asks as before: the question ends the turn.
    let call = json!({ "tool": "ask", "input": { "question": "Where to?" } });
    let input = json!({ "script": [{ "tools": [call] }] });
    let body = json!({ "agent": "asking", "ask": { "mode": "end_turn" }, "input": input });
    let id = owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(ends(&owner.settled(&id, 1).await), ["needs_input"]);

    let changed = owner.patch(&path, json!({ "ask": null })).await.ok();
    assert_eq!((changed.get("ask"), &changed["revision"]), (None, &json!(2)));
    let input = json!({ "script": [{ "tools": [call] }] });
    let made = owner.post("/sessions", json!({ "agent": "asking", "input": input })).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    assert_eq!(ends(&owner.settled(id, 1).await), ["needs_input"]);

    // A rule forbids the tool.
    let rules = json!([{ "tool": "ask", "policy": "deny" }]);
    let steps = json!([{ "tools": [questions(&json!([where_to()]))] }, { "text": "Done." }]);
    let body = json!({
        "agent": "asking", "ask": { "mode": "wait" }, "permissions": rules, "input": { "script": steps },
    });
    let made = owner.post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    owner.settled(id, 1).await;
    let log = log(owner, id).await;
    assert_eq!((of(&log, "action.required").len(), ends(&log)), (0, vec!["completed"]));
    assert!(outputs(&log)[0].contains("`ask` is denied"), "{log:?}");
    scene.close().await;
}
