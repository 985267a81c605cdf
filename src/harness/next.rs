//! Next action of a turn, computed from its log alone.
//!
//! Evaluated after every append, and by a worker that takes over a turn: no other state exists that
//! could be lost.

use crate::domain::{
    Event, TurnId,
    conversation::{Block, StopReason},
    event::{Body, Draft, Outcome, StepCompleted},
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

/// Returns the next action for `turn` at `attempt`.
pub(super) fn next(log: &[Event], turn: TurnId, attempt: i32) -> Next {
    let events: Vec<_> = log.iter().filter(|event| event.draft.turn_id == Some(turn)).collect();
    let started = events
        .iter()
        .any(|event| matches!(&event.draft.body, Body::TurnStarted { attempt: at, .. } if *at == attempt));
    if !started {
        return Next::Start;
    }
    let last = events.iter().rposition(|event| matches!(event.draft.body, Body::StepCompleted(_)));
    let since = &events[last.map_or(0, |at| at + 1)..];
    let Some(Body::StepCompleted(step)) = last.map(|at| &events[at].draft.body) else {
        return Next::Ask { failures: failures(since) };
    };
    after_step(step, since)
}

/// Returns the outcome if a response that is not in the log yet ends the turn.
pub(super) fn finish_of(answer: &[Draft]) -> Option<Finish> {
    let step = answer.iter().find_map(|draft| match &draft.body {
        Body::StepCompleted(step) => Some(step),
        _ => None,
    })?;
    match after_step(step, &[]) {
        Next::Finish(finish) => Some(finish),
        Next::Start | Next::Ask { .. } | Next::Run(_) => None,
    }
}

fn after_step(step: &StepCompleted, since: &[&Event]) -> Next {
    let mut pending = Vec::new();
    let mut asked = false;
    for block in &step.blocks {
        let Block::ToolCall(call) = block else { continue };
        let result = since.iter().find_map(|event| match &event.draft.body {
            Body::ToolResult { call_id, outcome, .. } if *call_id == call.call_id => Some(*outcome),
            _ => None,
        });
        match result {
            Some(outcome) => asked |= call.tool == ASK && outcome == Outcome::Ran,
            None => pending.push(call.clone()),
        }
    }
    if !pending.is_empty() {
        return Next::Run(pending);
    }
    if asked {
        return Next::Finish(Finish::Asked);
    }
    // The model must read the results, whatever stop reason the provider reported.
    if step.blocks.iter().any(|block| matches!(block, Block::ToolCall(_))) {
        return Next::Ask { failures: failures(since) };
    }
    match step.stop {
        StopReason::Pause => Next::Ask { failures: failures(since) },
        StopReason::EndTurn | StopReason::ToolUse => Next::Finish(Finish::Completed),
        StopReason::Refusal => Next::Finish(Finish::Refused),
        StopReason::MaxTokens => Next::Finish(Finish::Truncated),
    }
}

fn failures(since: &[&Event]) -> u32 {
    let failed = since.iter().filter(|event| matches!(event.draft.body, Body::ErrorModel(_))).count();
    u32::try_from(failed).unwrap_or(u32::MAX)
}
