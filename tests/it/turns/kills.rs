//! A process is killed while a turn writes a summary, is retried, or goes on after a loop was confirmed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    actions::{answer, pending},
    assert_sound, compaction, ends, last_turn, of, outputs, run,
};
use crate::{
    fake::{Fake, Request, Step, anthropic::Anthropic},
    support::{
        program::Program,
        service::{Caller, Ground, KEY, send},
        wait::wait_for,
    },
};

/// How long a model takes for what a kill hits.
const ANSWER_TIME: Duration = Duration::from_millis(400);
/// The process is killed after each of these times: before, during and after the answer.
const AFTER_MS: [u64; 6] = [0, 20, 200, 400, 420, 460];

fn start(ground: &Ground, more: &[&str]) -> (Program, Caller) {
    let program = Program::start(ground, &[&["--lease-ms=1000"], more].concat());
    let caller = Caller::new(&program.base, KEY);
    (program, caller)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_whose_worker_is_killed_is_written_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let decide = move |request: &Request| {
        let said = request.body["messages"].to_string();
        let step = match () {
            () if compaction::asks(request) => {
                count.fetch_add(1, Ordering::SeqCst);
                Step { delay: ANSWER_TIME, ..Step::text("All six are printed.") }
            }
            () if said.contains("All six are printed.") => Step::text("THE WORD."),
            () => compaction::print(request.call),
        };
        compaction::counted(request, step)
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground, &[&base_url]);
    compaction::agent(&caller, json!({ "max_tokens": 1_000, "context_tokens": 14_000 }), json!({})).await;
    for after in AFTER_MS {
        let before = asked.load(Ordering::SeqCst);
        let id = compaction::start(&caller).await;
        wait_for("a question", async || (asked.load(Ordering::SeqCst) > before).then_some(())).await;
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground, &[&base_url]);
        let log = caller.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!(ends(&log), ["completed"], "{after} ms");
        let steps = of(&log, "step.completed");
        let summaries = steps.iter().filter(|step| step["body"]["purpose"] == "compaction").count();
        assert_eq!((summaries, of(&log, "history.compacted").len()), (1, 1), "{after} ms");
        let outcomes =
            of(&log, "tool.result").iter().filter(|event| event["body"]["outcome"] == "ran").count();
        assert_eq!(outcomes, of(&log, "tool.call").len(), "{after} ms");
        assert!(asked.load(Ordering::SeqCst) <= before + 2, "{after} ms");
    }
    assert!(asked.load(Ordering::SeqCst) > AFTER_MS.len(), "no summary was interrupted");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_turn_whose_worker_is_killed_goes_on_after_its_last_complete_step() {
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let decide = move |request: &Request| match request.body["messages"].to_string().contains("tool_result") {
        false => Step::default().and_tool("bash", json!({ "command": "echo made >> made; cat made" })),
        true if away.load(Ordering::SeqCst) => Step::status(401, "authentication_error", "invalid x-api-key"),
        true => Step { delay: ANSWER_TIME, ..Step::text("It is made.") },
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground, &[&base_url]);
    let key = json!({ "provider": "anthropic", "key": "sk-ant-of-the-test", "is_default": true });
    caller.post("/credentials", key).await.ok();
    let agent = json!({
        "name": "maker", "prompt": "You make things.", "model": "anthropic/claude-sonnet-4-5", "tools": ["bash"],
    });
    caller.post("/agents", agent).await.ok();
    for after in AFTER_MS {
        is_away.store(true, Ordering::SeqCst);
        let made = caller.post("/sessions", json!({ "agent": "maker", "input": "Make a file." })).await.ok();
        let id = made["session"]["id"].as_str().expect("an id").to_owned();
        assert_eq!(ends(&caller.settled(&id, 1).await), ["error"]);
        let turn = last_turn(&caller, &id).await;
        is_away.store(false, Ordering::SeqCst);
        let path = format!("/sessions/{id}/turns/{}/retry", turn["id"].as_str().expect("an id"));
        let retry = |caller: &Caller| {
            send(caller.request(Method::POST, &path).header("idempotency-key", &id).json(&json!({})))
        };
        let accepted = retry(&caller).await;
        assert_eq!(accepted.status, 202);
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground, &[&base_url]);
        let log = caller.settled(&id, 2).await;
        assert_sound(&log);
        assert_eq!((ends(&log), outputs(&log)), (vec!["error", "completed"], vec!["made\n"]), "{after} ms");
        assert_eq!(of(&log, "turn.retried").len(), 1, "{after} ms");
        let repeated = retry(&caller).await;
        assert_eq!((repeated.status.as_u16(), repeated.ok()), (200, accepted.ok()), "{after} ms");
    }
    assert_eq!(fake.refusals(), Vec::<String>::new());
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_confirmed_loop_never_runs_twice() {
    let ground = Ground::new().await;
    let (mut program, mut caller) = start(&ground, &[]);
    let agent = json!({ "name": "looping", "prompt": "", "model": "scripted/inline" });
    caller.post("/agents", agent).await.ok();
    let equal = run("echo ran >> ran; sleep 0.3; wc -l < ran");
    let steps = json!([equal, equal, equal, { "text": "Done." }]);
    for after in AFTER_MS {
        let body = json!({ "agent": "looping", "input": { "script": steps } });
        let made = caller.post("/sessions", body).await.ok();
        let id = made["session"]["id"].as_str().expect("an id").to_owned();
        let [action]: [Value; 1] = pending(&caller, &id, 1).await.try_into().expect("an action");
        assert_eq!(action["reason"], "loop");
        let once = json!([{
            "type": "user.tool_confirmation", "action_id": action["id"], "decision": "once",
            "args_hash": action["args_hash"],
        }]);
        assert_eq!(answer(&caller, &id, once.clone()).await.status, 202);
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, caller) = start(&ground, &[]);
        let log = caller.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!((outputs(&log), ends(&log)), (vec!["1\n", "2\n", "3\n"], vec!["completed"]), "{after} ms");
        assert_eq!(of(&log, "tool.started").len(), 1, "{after} ms");
        assert_eq!(answer(&caller, &id, once).await.status, 200, "{after} ms");
    }
    program.kill();
}
