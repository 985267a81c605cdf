//! Change that a batch of a turn's events makes to the session's row.
//!
//! A leased turn does not lock the row, so it cannot write the whole fold back; it writes
//! differences. A property test verifies `record == apply`.

use super::{
    apply::exec_ms,
    event::{Body, Draft, TurnCompleted, caller_events, informational},
    ids::*,
    usage::Usage,
};

/// Difference that some events of one turn or sandbox make.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    pub usage: Usage,
    /// The model that responded, as `provider/model`.
    pub model: Option<String>,
    /// Whether a model call ended, so that its reservation is released.
    pub settles: bool,
    /// Run time of callers' commands that ended, in milliseconds.
    pub exec_ms: u64,
    /// Whether an idle session becomes `failed`.
    pub fails: bool,
    pub start: Option<Start>,
    pub end: Option<TurnCompleted>,
}

/// The start of a turn, with the input window that its worker saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    pub turn_id: TurnId,
    pub input_to_seq: i64,
    pub attempt: i32,
}

impl Delta {
    /// Returns whether the events change only the log.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Sums up the events of one append.
    pub fn of<'a>(drafts: impl IntoIterator<Item = &'a Draft>) -> Self {
        let mut delta = Self::default();
        for draft in drafts {
            delta.usage += Usage::of(draft);
            delta.exec_ms += exec_ms(&draft.body);
            delta.settles |= matches!(
                draft.body,
                Body::StepCompleted(_) | Body::StepAborted(_) | Body::ErrorModel(_) | Body::TurnCompleted(_)
            );
            match &draft.body {
                Body::StepCompleted(step) => delta.model = Some(format!("{}/{}", step.provider, step.model)),
                Body::StepAborted(step) => delta.model = Some(format!("{}/{}", step.provider, step.model)),
                Body::TurnStarted { turn_id, input_to_seq, attempt, .. } => {
                    delta.start =
                        Some(Start { turn_id: *turn_id, input_to_seq: *input_to_seq, attempt: *attempt });
                }
                Body::SandboxRotationFailed { failed, .. } => delta.fails |= failed,
                Body::TurnCompleted(completed) => delta.end = Some((**completed).clone()),
                Body::SessionCreated(_)
                | caller_events!()
                | Body::SessionRejected { .. }
                | Body::UserMessage { .. }
                | Body::TurnCancelRequested { .. }
                | Body::AgentMessage { .. }
                | Body::AgentThinking { .. }
                | Body::ToolCall { .. }
                | Body::ExecStarted { .. }
                | Body::ExecCompleted { .. }
                | Body::ToolResult { .. }
                | Body::ErrorModel(_)
                | Body::ErrorRuntime(_)
                | Body::ErrorTask(_)
                | informational!() => {}
            }
        }
        delta
    }
}
