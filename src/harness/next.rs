//! Next action of a turn, computed from the fold of its log alone.
//!
//! Evaluated after every append, and by a worker that takes over a turn: no other state exists that
//! could be lost.

use crate::domain::{
    conversation::StopReason,
    event::{Body, Draft, Outcome},
    log_fold::{LastStep, TurnFold},
    tool::{ASK, ToolCall},
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
    /// The model declined.
    Refused,
    /// The response reached the call's `max_tokens`.
    Truncated,
}

/// Returns the next action for a turn at `attempt`. `None` for a turn without events.
pub(super) fn next(turn: Option<&TurnFold>, attempt: i32) -> Next {
    let Some(turn) = turn.filter(|turn| attempt <= turn.attempt) else { return Next::Start };
    match &turn.step {
        Some(step) => after_step(step, turn.model_failures),
        None => Next::Ask { failures: turn.model_failures },
    }
}

/// Returns the outcome if a response that is not in the log yet ends the turn.
pub(super) fn finish_of(answer: &[Draft]) -> Option<Finish> {
    let step = answer.iter().find_map(|draft| match &draft.body {
        Body::StepCompleted(step) => Some(step),
        _ => None,
    })?;
    match after_step(&LastStep::of(step), 0) {
        Next::Finish(finish) => Some(finish),
        Next::Start | Next::Ask { .. } | Next::Run(_) => None,
    }
}

fn after_step(step: &LastStep, failures: u32) -> Next {
    let pending: Vec<_> =
        step.calls.iter().filter(|one| one.outcome.is_none()).map(|one| one.call.clone()).collect();
    if !pending.is_empty() {
        return Next::Run(pending);
    }
    if step.calls.iter().any(|one| one.call.tool == ASK && one.outcome == Some(Outcome::Ran)) {
        return Next::Finish(Finish::Asked);
    }
    // The model must read the results, whatever stop reason the provider reported.
    if !step.calls.is_empty() {
        return Next::Ask { failures };
    }
    match step.stop {
        StopReason::Pause => Next::Ask { failures },
        StopReason::EndTurn | StopReason::ToolUse => Next::Finish(Finish::Completed),
        StopReason::Refusal => Next::Finish(Finish::Refused),
        StopReason::MaxTokens => Next::Finish(Finish::Truncated),
    }
}
