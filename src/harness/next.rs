//! Next action of a turn, computed from the fold of its log alone.
//!
//! Evaluated after every append, and by a worker that takes over a turn: no other state exists that
//! could be lost.

use crate::domain::{
    conversation::StopReason,
    event::{Body, Draft},
    log_fold::{LastStep, TurnFold},
    repetition::Repetition,
    tool::ToolCall,
    turn::YieldReason,
};

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Append `turn.started` for this attempt.
    Start,
    /// Call the model.
    Ask {
        /// Failed model calls since the last response.
        failures: u32,
    },
    /// Run the calls of the last response that have no result yet, in its order.
    Run(Vec<ToolCall>),
    /// Append the results of these calls, whose actions have ended.
    Settle(Vec<ToolCall>),
    /// Wait for callers: nothing else can run.
    Wait,
    /// Tell the model that it has not submitted the output that the turn needs.
    AskForOutput,
    /// End the turn.
    Finish(Finish),
}

/// Outcome of a turn, given by its last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The agent finished.
    Completed,
    /// The agent asked its caller a question.
    Asked,
    /// Nobody answered an action in time, and its tool ends the turn then.
    Unanswered,
    /// The model declined.
    Refused,
    /// The response reached the call's `max_tokens`.
    Truncated,
    /// The agent made the same calls again and again.
    Repeated(Repetition),
    /// The agent submitted too many outputs that do not fit.
    OutputInvalid,
}

/// Returns the next action for a turn at `attempt`; `repairs` are those of its output, if it needs one. `None` for a
/// turn without events.
pub(super) fn next(turn: Option<&TurnFold>, attempt: i32, repairs: Option<u32>) -> Next {
    let Some(turn) = turn.filter(|turn| attempt <= turn.attempt) else { return Next::Start };
    match &turn.step {
        Some(step) => after_step(step, turn, repairs),
        None if !turn.has_input && turn.has_summarized => Next::Finish(Finish::Completed),
        None => Next::Ask { failures: turn.model_failures },
    }
}

/// Returns the outcome if a response that is not in the log yet ends the turn.
pub(super) fn finish_of(answer: &[Draft], repairs: Option<u32>) -> Option<Finish> {
    let step = answer.iter().find_map(|draft| match &draft.body {
        Body::StepCompleted(step) => Some(step),
        _ => None,
    })?;
    match after_step(&LastStep::of(step), &TurnFold::default(), repairs) {
        Next::Finish(finish) => Some(finish),
        Next::Start | Next::Ask { .. } | Next::Run(_) | Next::Settle(_) | Next::Wait | Next::AskForOutput => {
            None
        }
    }
}

fn after_step(step: &LastStep, turn: &TurnFold, repairs: Option<u32>) -> Next {
    if let Some(repetition) = turn.final_loop {
        return Next::Finish(Finish::Repeated(repetition));
    }
    let ends_turn = |reason| step.calls.iter().any(|one| one.ends_turn == Some(reason));
    if ends_turn(YieldReason::RequiresAction) {
        return Next::Finish(Finish::Unanswered);
    }
    let failures = turn.model_failures;
    let pending: Vec<_> =
        step.calls.iter().filter(|one| one.outcome.is_none()).map(|one| &one.call).collect();
    if !pending.is_empty() {
        return of_pending(&pending, turn);
    }
    if turn.has_new_input {
        return Next::Ask { failures };
    }
    if repairs.is_some_and(|repairs| turn.output_repairs > repairs) && turn.output.is_none() {
        return Next::Finish(Finish::OutputInvalid);
    }
    if ends_turn(YieldReason::Completed) {
        return Next::Finish(Finish::Completed);
    }
    if ends_turn(YieldReason::NeedsInput) {
        return Next::Finish(Finish::Asked);
    }
    // The model must read the results, whatever stop reason the provider reported.
    if !step.calls.is_empty() {
        return Next::Ask { failures };
    }
    match step.stop {
        StopReason::Pause => Next::Ask { failures },
        StopReason::EndTurn | StopReason::ToolUse if repairs.is_some() => Next::AskForOutput,
        StopReason::EndTurn | StopReason::ToolUse => Next::Finish(Finish::Completed),
        StopReason::Refusal => Next::Finish(Finish::Refused),
        StopReason::MaxTokens => Next::Finish(Finish::Truncated),
    }
}

/// Read-only calls pass those that wait for a caller. A call that changes something passes no earlier call, and no
/// later call passes it.
fn of_pending(pending: &[&ToolCall], turn: &TurnFold) -> Next {
    let ended: Vec<_> =
        pending.iter().filter(|call| turn.ended_action(&call.call_id).is_some()).copied().cloned().collect();
    if !ended.is_empty() {
        return Next::Settle(ended);
    }
    let (mut runnable, mut is_held) = (Vec::new(), false);
    for &call in pending {
        if turn.needs_caller(&call.call_id) {
            is_held = true;
        } else if !is_held || turn.is_read_only(&call.call_id) {
            runnable.push(call.clone());
        } else {
            break;
        }
    }
    if runnable.is_empty() { Next::Wait } else { Next::Run(runnable) }
}
