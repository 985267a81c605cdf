//! A stored fold and the events since give the same as the whole log, wherever the log was cut.

use proptest::prelude::*;
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
    let (mut is_there, mut announced) = (false, false);
    for event in log {
        match &event.draft.body {
            Body::SandboxCreated { .. } | Body::SandboxLost { .. } if announced => return true,
            Body::SandboxCreated { .. } => is_there = true,
            Body::SandboxLost { .. } | Body::SandboxTerminated { .. } => is_there = false,
            Body::ToolCall { call_id, .. } => announced |= call_id == call,
            _ => {}
        }
    }
    is_there
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn a_stored_fold_and_the_events_since_are_the_fold_of_the_log(moves in moves()) {
        hold(&Log::of(moves).events)?;
    }
}
