//! A stored fold and the events since give the same as the whole log, wherever the log was cut.

use proptest::prelude::*;
use serde_json::{Value, json};
use sojourn::domain::{
    Body, Event, TurnId,
    log_fold::{FOLDED, LogFold, may_have_run},
};

use super::{
    cases,
    log::{Log, moves},
};

/// Calls of a turn without a result, by reading the whole log.
fn open_calls(log: &[Event], turn: TurnId) -> Vec<&str> {
    let mut open = Vec::new();
    for event in log.iter().filter(|event| event.draft.turn_id == Some(turn)) {
        match &event.draft.body {
            Body::ToolCall { call_id, .. } => open.push(call_id.as_str()),
            Body::ToolResult { call_id, .. } => open.retain(|open| open != call_id),
            Body::TurnCompleted(_) => open.clear(),
            _ => {}
        }
    }
    open
}

/// Whether a call may have met a sandbox, by reading the whole log.
fn met_a_sandbox(log: &[Event], call: &str) -> bool {
    let (mut is_there, mut announced, mut met) = (false, false, false);
    for event in log {
        match &event.draft.body {
            Body::SandboxCreated { .. } => (is_there, met) = (true, announced),
            Body::SandboxLost { .. } => (is_there, met) = (false, announced),
            Body::SandboxTerminated { .. } => is_there = false,
            Body::ToolCall { call_id, .. } => announced |= call_id == call,
            // No call runs while a turn waits.
            Body::TurnWaiting { .. } => met = false,
            _ => {}
        }
    }
    is_there || met
}

/// Turns that have begun or are queued at the end of a log.
fn open_turns(log: &[Event]) -> Vec<TurnId> {
    let mut open = Vec::new();
    for event in log {
        match &event.draft.body {
            Body::TurnCompleted(completed) => open.retain(|turn| *turn != completed.turn_id),
            _ => open.extend(event.draft.turn_id.filter(|turn| !open.contains(turn))),
        }
    }
    open
}

/// The fold as a database returns it.
fn stored(fold: &LogFold) -> LogFold {
    serde_json::from_str(&serde_json::to_string(fold).expect("a fold is JSON")).expect("its own form")
}

fn hold(log: &[Event]) -> Result<(), TestCaseError> {
    let folds: Vec<_> = (0..=log.len()).map(|at| LogFold::of(&log[..at], false)).collect();
    for (from, fold) in folds.iter().enumerate() {
        let mut fold = stored(fold);
        // A turn reads only the types of events that the fold names, and skips what the fold has.
        for (at, event) in log.iter().enumerate().skip(from) {
            if FOLDED.contains(&event.draft.body.type_name()) {
                fold.take(event);
            }
            prop_assert_eq!(&fold, &folds[at + 1], "stored at {}, read to {}", from, at + 1);
        }
    }
    for (at, fold) in folds.iter().enumerate() {
        for turn in open_turns(&log[..at]) {
            let calls = fold.open_calls(turn);
            let ids: Vec<_> = calls.iter().map(|call| call.call_id.as_str()).collect();
            prop_assert_eq!(&ids, &open_calls(&log[..at], turn));
            for call in ids {
                let met = met_a_sandbox(&log[..at], call);
                prop_assert_eq!(fold.may_have_run(turn, call), met, "{} at {}", call, at);
                prop_assert_eq!(may_have_run(&log[..at], call), met, "{} at {}, from the end", call, at);
            }
        }
    }
    Ok(())
}

/// A log of one turn with a call of `bash` and its action, and these events behind them.
fn log_of_a_call(kind: &str, then: &[(&str, Value)]) -> (Vec<Event>, TurnId) {
    let turn = "trn_01m8160kajfsb85newx72k16b7";
    let action = json!({ "id": "act_01m8c1efsbeafrbvmnsk7w433c", "kind": kind, "call_id": "c", "tool": "bash", "input": {},
        "call_event_id": "evt_00000000000000000000000002", "expires_at": "2026-11-22T09:00:00Z", "args_hash": "sha256:00" });
    let begin = [
        (
            "turn.started",
            json!({ "turn_id": turn, "input_from_seq": 1, "input_to_seq": 1, "attempt": 1, "fee_micros": 0 }),
        ),
        (
            "tool.call",
            json!({ "call_id": "c", "tool": "bash", "input": {}, "args_summary": "", "replay": "unsafe" }),
        ),
        ("action.required", action),
    ];
    let event = |(at, (kind, body)): (usize, &(&str, Value))| {
        let event = json!({ "id": format!("evt_{:026}", at + 1), "seq": at + 1, "ts": "2026-11-22T08:00:00Z",
            "actor": { "type": "system" }, "type": kind, "level": "progress", "body": body, "refs": {}, "turn_id": turn });
        serde_json::from_value(event).expect("an event")
    };
    let events = begin.iter().chain(then).enumerate().map(event).collect();
    (events, turn.parse().expect("an id"))
}

#[test]
fn a_call_that_nobody_allowed_has_not_begun() {
    let action = "act_01m8c1efsbeafrbvmnsk7w433c";
    let decided =
        |decision: &str| ("user.tool_confirmation", json!({ "action_id": action, "decision": decision }));
    let closed = ("action.closed", json!({ "action_id": action, "reason": "expired" }));
    let started = ("tool.started", json!({ "call_id": "c" }));
    for (kind, then, has_not_begun) in [
        ("confirmation", vec![], true),
        ("confirmation", vec![decided("reject")], true),
        ("confirmation", vec![closed.clone()], true),
        ("confirmation", vec![decided("once")], true),
        ("confirmation", vec![decided("once"), started], false),
        // A caller may have run it.
        ("tool_result", vec![closed], false),
    ] {
        let (log, turn) = log_of_a_call(kind, &then);
        let fold = LogFold::of(&log, false);
        let state = fold.turn(turn).expect("the turn");
        assert_eq!(state.has_not_begun("c"), has_not_begun, "{kind}, {then:?}");
    }
}

#[test]
fn a_call_that_did_not_run_before_a_wait_has_met_no_sandbox_that_ended_in_it() {
    let sandbox = "sbx_01m8m3cwtpf8rtdf2ktwdy4r63";
    let created = ("sandbox.created", json!({ "sandbox_id": sandbox, "duration_ms": 1 }));
    let waiting = json!({ "turn_id": "trn_01m8160kajfsb85newx72k16b7", "action_ids": ["act_01m8c1efsbeafrbvmnsk7w433c"],
        "read_to_seq": 0, "expires_at": "2026-11-22T09:00:00Z", "active_seconds": 1 });
    let waiting = ("turn.waiting", waiting);
    let ended = ("sandbox.terminated", json!({ "sandbox_id": sandbox, "reason": "idle" }));
    let (gone, lost) = (ended.clone(), ("sandbox.lost", json!({ "sandbox_id": sandbox, "reason": "gone" })));
    for (then, may) in [
        (vec![created.clone(), ended.clone()], true),
        (vec![created.clone(), waiting.clone(), ended], false),
        (vec![created.clone(), waiting.clone(), lost], true),
        (vec![created.clone(), waiting.clone(), gone.clone(), created.clone(), gone], true),
        (vec![created, waiting], true),
    ] {
        let (log, turn) = log_of_a_call("tool_result", &then);
        assert_eq!(LogFold::of(&log, false).may_have_run(turn, "c"), may, "{then:?}");
        assert_eq!(may_have_run(&log, "c"), may, "{then:?}, from the end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn a_stored_fold_and_the_events_since_are_the_fold_of_the_log(moves in moves()) {
        hold(&Log::of(moves).events)?;
    }
}
