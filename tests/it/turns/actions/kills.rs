//! A process is killed in every state of a wait: nothing is lost, and nothing is taken twice.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{answer, pending, play, questions, result, weather};
use crate::{
    support::{
        program::Program,
        service::{Caller, Ground, KEY},
        wait::wait_for,
    },
    turns::{assert_sound, bash, ends, log, of, outputs},
};

/// A turn whose call was confirmed is killed after each of these times; the call takes a second.
const CONFIRMED_MS: [u64; 6] = [0, 20, 100, 400, 800, 1_300];
const SETTINGS: [&str; 1] = ["--lease-ms=1000"];
/// A resuming turn is killed after each of these times.
const RESUMING_MS: [u64; 8] = [0, 2, 5, 10, 20, 40, 80, 160];

fn start(ground: &Ground, more: &[&str]) -> (Program, Caller) {
    let program = Program::start(ground, &[&SETTINGS, more].concat());
    let caller = Caller::new(&program.base, KEY);
    (program, caller)
}

/// Starts a session whose turn waits for one result; returns it and its action.
async fn waiting(caller: &Caller, more: Value) -> (String, Value) {
    let steps = json!([{ "tools": [weather("Paris")] }, { "text": "Done." }]);
    let id = play(caller, more, steps).await;
    let action = pending(caller, &id, 1).await.remove(0);
    (id, action)
}

/// Asserts that the turn ended once, with one result, in its first attempt.
#[track_caller]
fn assert_taken_once(log: &[Value], output: &str) {
    assert_sound(log);
    assert_eq!((outputs(log), ends(log)), (vec![output], vec!["completed"]));
    let ends = of(log, "user.custom_tool_result").len() + of(log, "action.closed").len();
    assert_eq!((of(log, "action.required").len(), ends), (1, 1), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waits_outlives_its_worker() {
    let ground = Ground::new().await;
    let (program, caller) = start(&ground, &[]);
    let (waits, open) = waiting(&caller, json!({})).await;
    let (answered, taken) = waiting(&caller, json!({})).await;
    let (expires, late) = waiting(&caller, json!({ "expires_seconds": 10 })).await;
    program.kill();

    // Nobody could run a turn when this one is answered.
    let (api, caller) = start(&ground, &["--role=api"]);
    assert_eq!(answer(&caller, &answered, json!([result(&taken, "rain")])).await.status, 202);
    api.kill();
    let is_late = "select count(*) from action where expires_at <= now()";
    wait_for("the time of an action", async || (ground.count(is_late).await == 1).then_some(())).await;

    let (program, caller) = start(&ground, &[]);
    assert_eq!(answer(&caller, &answered, json!([result(&taken, "rain")])).await.status, 200);
    assert_taken_once(&caller.settled(&answered, 1).await, "rain");
    let error = answer(&caller, &expires, json!([result(&late, "rain")])).await.error(409);
    assert_eq!(error["code"], "action_expired");
    let told = caller.settled(&expires, 1).await;
    assert_taken_once(&told, outputs(&told)[0]);
    assert_eq!(of(&told, "tool.result")[0]["body"]["outcome"], "unknown");
    assert_eq!(of(&log(&caller, &waits).await, "turn.waiting").len(), 1, "nothing happened to it");
    assert_eq!(answer(&caller, &waits, json!([result(&open, "sun")])).await.status, 202);
    let continued = caller.settled(&waits, 1).await;
    assert_taken_once(&continued, "sun");
    for log in [&told, &continued] {
        assert_eq!(of(log, "turn.started").len(), 1, "a wait is no attempt");
    }
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_and_a_confirmation_outlive_their_worker() {
    let ground = Ground::new().await;
    let (program, caller) = start(&ground, &[]);
    let question = json!({ "tool": "ask", "input": { "questions": [{ "question": "Where to?" }] } });
    let asked = questions::play(
        &caller,
        json!({ "mode": "wait" }),
        json!([{ "tools": [question] }, { "text": "Done." }]),
    )
    .await;
    let body = json!({
        "agent": caller.inline_agent().await, "permissions": [{ "tool": "bash", "policy": "ask" }],
        "input": { "script": [{ "tools": [bash("echo ran")] }, { "text": "Done." }] },
    });
    let made = caller.post("/sessions", body).await.ok();
    let held = made["session"]["id"].as_str().expect("an id").to_owned();
    let question = pending(&caller, &asked, 1).await.remove(0);
    let confirmation = pending(&caller, &held, 1).await.remove(0);
    program.kill();

    let (program, caller) = start(&ground, &[]);
    let once = json!([{
        "type": "user.tool_confirmation", "action_id": confirmation["id"], "decision": "once",
        "args_hash": confirmation["args_hash"],
    }]);
    let there = questions::answers(&question, json!([{ "text": "there" }]));
    for (id, sent, output) in [(&asked, there, "there"), (&held, once, "ran\n")] {
        assert_eq!(answer(&caller, id, sent).await.status, 202);
        let log = caller.settled(id, 1).await;
        assert_sound(&log);
        assert_eq!((outputs(&log), ends(&log)), (vec![output], vec!["completed"]));
        assert_eq!(of(&log, "turn.started").len(), 1, "a wait is no attempt");
    }
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_continues_takes_its_result_once() {
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground, &[]);
    for after in RESUMING_MS {
        let (id, action) = waiting(&caller, json!({})).await;
        assert_eq!(answer(&caller, &id, json!([result(&action, "rain")])).await.status, 202);
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground, &[]);
        assert_taken_once(&caller.settled(&id, 1).await, "rain");
        assert_eq!(answer(&caller, &id, json!([result(&action, "rain")])).await.status, 200);
    }
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_continues_takes_its_answers_once() {
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground, &[]);
    let question = json!({ "tool": "ask", "input": { "questions": [{ "question": "Where to?" }] } });
    let steps = json!([{ "tools": [question] }, { "text": "Done." }]);
    for after in RESUMING_MS {
        let id = questions::play(&caller, json!({ "mode": "wait" }), steps.clone()).await;
        let action = pending(&caller, &id, 1).await.remove(0);
        let sent = questions::answers(&action, json!([{ "text": "there" }]));
        assert_eq!(answer(&caller, &id, sent.clone()).await.status, 202);
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground, &[]);
        let log = caller.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!((outputs(&log), ends(&log)), (vec!["there"], vec!["completed"]));
        assert_eq!((of(&log, "action.required").len(), of(&log, "user.answer").len()), (1, 1));
        assert_eq!(answer(&caller, &id, sent).await.status, 200);
    }
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_call_never_runs_twice() {
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground, &[]);
    let agent = json!({
        "name": "asking", "prompt": "", "model": "scripted/inline",
        "permissions": [{ "tool": "bash", "policy": "ask" }, { "tool": "bash", "prefix": "wc", "policy": "allow" }],
    });
    caller.post("/agents", agent).await.ok();
    let steps = json!([
        { "tools": [bash("echo ran >> ran; sleep 1; echo done")] }, { "tools": [bash("wc -l ran")] }, { "text": "Done." },
    ]);
    for after in CONFIRMED_MS {
        let body = json!({ "agent": "asking", "input": { "script": steps } });
        let made = caller.post("/sessions", body).await.ok();
        let id = made["session"]["id"].as_str().expect("an id").to_owned();
        let action = pending(&caller, &id, 1).await.remove(0);
        let once =
            json!([{ "type": "user.tool_confirmation", "action_id": action["id"], "decision": "once" }]);
        assert_eq!(answer(&caller, &id, once.clone()).await.status, 202);
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground, &[]);
        let log = caller.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!((outputs(&log), ends(&log)), (vec!["done\n", "1 ran\n"], vec!["completed"]), "{after} ms");
        assert_eq!(of(&log, "tool.started").len(), 1, "{after} ms");
        assert_eq!(answer(&caller, &id, once).await.status, 200);
    }
    program.kill();
}
