//! What a turn does next, read from its log alone.
//!
//! The same question is asked after every append and by a worker that takes a turn
//! over: there is no other memory to lose.

use crate::domain::{
    Event, TurnId,
    conversation::{Block, StopReason},
    event::{Body, Draft, Outcome, StepCompleted},
    tool::{ASK, ToolCall},
};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Write `turn.started` for this attempt.
    Start,
    /// Ask the model.
    Ask {
        /// Failed calls since the last answer.
        failures: u32,
    },
    /// Run the calls of the last answer that have no result yet, in its order.
    Run(Vec<ToolCall>),
    /// The agent is done.
    Finish(Finish),
}

/// How the last answer ends the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// It has nothing more to say.
    Completed,
    /// It asked its caller.
    Asked,
    /// The model declined.
    Refused,
    /// It ran into the call's `max_tokens`.
    CutShort,
}

/// The next thing to do for `turn` at `attempt`.
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

/// How an answer that is not in the log yet ends the turn, if it does.
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
    // Results are there to be read, whatever the provider called its stop.
    if step.blocks.iter().any(|block| matches!(block, Block::ToolCall(_))) {
        return Next::Ask { failures: failures(since) };
    }
    match step.stop {
        StopReason::Pause => Next::Ask { failures: failures(since) },
        StopReason::EndTurn | StopReason::ToolUse => Next::Finish(Finish::Completed),
        StopReason::Refusal => Next::Finish(Finish::Refused),
        StopReason::MaxTokens => Next::Finish(Finish::CutShort),
    }
}

fn failures(since: &[&Event]) -> u32 {
    let failed = since.iter().filter(|event| matches!(event.draft.body, Body::ErrorModel(_))).count();
    u32::try_from(failed).unwrap_or(u32::MAX)
}
