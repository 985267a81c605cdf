//! Change that a batch of a turn's events makes to the session's row.
//!
//! A leased turn does not lock the row, so it cannot write the whole fold back; it writes
//! differences. A property test verifies `record == apply`.

use super::{
    action::ActionKind,
    cost::Cost,
    event::{
        Body, Draft, TurnCompleted, action_events, caller_events, error_events, history_events,
        informational, mcp_events,
    },
    ids::*,
    session::Status,
    tool::SUBMIT_OUTPUT,
    usage::Usage,
};
use crate::base::Timestamp;

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
    pub wait: Option<Wait>,
    /// Whether a waiting turn continues.
    pub resumes: bool,
    /// Actions that are opened, each the id of its event with the expiry.
    pub actions: Vec<(EventId, ActionKind, Timestamp)>,
    pub end: Option<TurnCompleted>,
}

/// The wait of a turn for actions or sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub expires_at: Timestamp,
    pub active_seconds: u64,
    /// Status of the session meanwhile.
    pub status: Status,
    /// The child sessions that it waits for.
    pub sessions: Vec<SessionId>,
}

impl Wait {
    /// Returns the status of a session whose turn waits with these open actions.
    pub(super) fn status_of(actions: &[ActionId]) -> Status {
        if actions.is_empty() { Status::Running } else { Status::AwaitingInput }
    }
}

/// The start of a turn, with the input window that its worker saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    pub turn_id: TurnId,
    pub input_to_seq: i64,
    pub attempt: i32,
    /// The place of the pinned agent that its worker saw.
    pub agent_seq: i64,
}

impl Usage {
    /// Returns the usage of an event; the only rule, shared by the fold and the deltas.
    pub fn of(draft: &Draft) -> Self {
        let cost = |cost| Self { cost, ..Self::default() };
        match &draft.body {
            Body::StepCompleted(step) => {
                // A step from before the introduction of prices has no price information.
                let says_nothing = step.cost_micros.is_none() && step.usage.cost.unpriced_steps == 0;
                step.usage + cost(Cost { unpriced_steps: u64::from(says_nothing), ..Cost::default() })
            }
            Body::StepAborted(step) => step.usage,
            // An output is the end of the work, not a part of it.
            Body::ToolCall { tool, .. } if tool == SUBMIT_OUTPUT => Self::default(),
            Body::ToolCall { .. } => Self { tool_calls: 1, ..Self::default() },
            Body::TurnStarted { fee_micros, .. } => cost(Cost { fee_micros: *fee_micros, ..Cost::default() }),
            Body::ExecCompleted { exec_id, cpu_micros, memory_micros, .. } => Self {
                tool_calls: u64::from(exec_id.is_some()),
                ..cost(Cost {
                    sandbox_cpu_micros: *cpu_micros,
                    sandbox_memory_micros: *memory_micros,
                    ..Cost::default()
                })
            },
            Body::SessionCreated(_)
            | caller_events!()
            | Body::SessionRejected { .. }
            | Body::ExecStarted { .. }
            | Body::SandboxRotationFailed { .. }
            | Body::UserMessage { .. }
            | Body::TurnCancelRequested { .. }
            | Body::AgentMessage { .. }
            | Body::AgentThinking { .. }
            | history_events!()
            | Body::ToolResult { .. }
            | Body::TurnWaiting { .. }
            | Body::TurnResumed { .. }
            | Body::TurnSteered { .. }
            | Body::TurnRetried { .. }
            | action_events!()
            | error_events!()
            | Body::TurnCompleted(_)
            | mcp_events!()
            | informational!() => Self::default(),
        }
    }
}

/// Returns the run time of a caller's command that ended; 0 for other events.
pub(super) fn exec_ms(body: &Body) -> u64 {
    match body {
        Body::ExecCompleted { exec_id: Some(_), duration_ms, .. } => *duration_ms,
        _ => 0,
    }
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
                Body::TurnStarted { turn_id, input_to_seq, attempt, agent_seq, .. } => {
                    let (turn_id, input_to_seq) = (*turn_id, *input_to_seq);
                    let (attempt, agent_seq) = (*attempt, *agent_seq);
                    delta.start = Some(Start { turn_id, input_to_seq, attempt, agent_seq });
                }
                Body::TurnWaiting { expires_at, active_seconds, action_ids, session_ids, .. } => {
                    delta.wait = Some(Wait {
                        expires_at: *expires_at,
                        active_seconds: *active_seconds,
                        status: Wait::status_of(action_ids),
                        sessions: session_ids.clone(),
                    });
                }
                Body::TurnResumed { .. } => delta.resumes = true,
                Body::ActionRequired(action) => {
                    delta.actions.push((draft.id, action.kind, action.expires_at));
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
                | history_events!()
                | Body::ToolCall { .. }
                | Body::ExecStarted { .. }
                | Body::ExecCompleted { .. }
                | Body::ToolResult { .. }
                | Body::ToolStarted { .. }
                | Body::UserCustomToolResult(_)
                | Body::UserToolConfirmation(_)
                | Body::UserAnswer(_)
                | Body::PermissionGranted(_)
                | Body::PermissionRevoked { .. }
                | Body::ActionClosed { .. }
                | Body::TurnSteered { .. }
                | Body::TurnRetried { .. }
                | error_events!()
                | mcp_events!()
                | informational!() => {}
            }
        }
        delta
    }
}
