//! A process is killed while a session waits for its children, or as one of them ends: nothing is lost, and nothing
//! happens twice.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{call, check, child, parent, release, results, wait, waits};
use crate::{
    support::{
        program::Program,
        service::{Caller, Ground, KEY},
    },
    turns::{assert_sound, ends, log, of, script, steer},
};

/// Times between the end of a child, or the call of a tool, and the kill.
const AFTER_MS: [u64; 8] = [0, 2, 5, 10, 20, 40, 80, 160];

fn start(ground: &Ground) -> (Program, Caller) {
    let program = Program::start(ground, &["--lease-ms=1000"]);
    let caller = Caller::new(&program.base, KEY);
    (program, caller)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_outlives_its_worker_and_ends_once() {
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground);
    for after in AFTER_MS {
        let top = parent(&caller, json!({})).await;
        let one = child(&caller, &top, json!([check(), { "text": "One." }])).await;
        steer(&caller, &top, &script(json!([wait(&[&one], json!({})), { "text": "Done." }]))).await;
        waits(&caller, &top).await;
        release(&caller, &one).await;
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground);
        let log = caller.settled(&top, 1).await;
        assert_sound(&log);
        assert_eq!((ends(&log), &results(&log)[0]["timed_out"]), (vec!["completed"], &json!(false)));
        let of_child = caller.settled(&one, 1).await;
        assert_sound(&of_child);
    }
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_and_a_cancel_of_a_killed_worker_happen_once() {
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground);
    for after in AFTER_MS {
        let top = parent(&caller, json!({})).await;
        let one = child(&caller, &top, json!([{ "text": "One." }])).await;
        caller.settled(&one, 1).await;
        let said = script(json!([{ "delay_ms": 400 }, { "text": "Two." }]));
        let steps = json!([
            call("session_message", json!({ "id": one, "text": said })),
            call("session_cancel", json!({ "id": one })),
            call("session_message", json!({ "id": one, "text": script(json!([{ "text": "Three." }])) })),
            wait(&[&one], json!({})),
            { "text": "Done." },
        ]);
        steer(&caller, &top, &script(steps)).await;
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground);
        let of_top = caller.settled(&top, 1).await;
        assert_sound(&of_top);
        assert_eq!(ends(&of_top), ["completed"]);
        let of_child = log(&caller, &one).await;
        assert_sound(&of_child);
        let texts: Vec<Value> =
            of(&of_child, "user.message")[1..].iter().map(|event| event["body"]["text"].clone()).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        let reasons = ends(&of_child);
        assert_eq!((reasons.len(), reasons.last()), (3, Some(&"completed")), "{reasons:?}");
    }
    program.kill();
}
