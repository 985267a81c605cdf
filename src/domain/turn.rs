//! A turn: one bounded run of the agent over its pending input.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ids::*, usage::Usage};
use crate::base::Timestamp;

/// State of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    /// Waiting for a worker; input may still join it.
    Queued,
    /// A worker runs it.
    Running,
    /// It waits for actions of callers or for child sessions; no worker has it.
    Waiting,
    /// Ended without an error; see `yield_reason`.
    Ok,
    /// Ended by an error.
    Error,
}

/// Reason why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum YieldReason {
    /// The agent finished.
    Completed,
    /// The agent asked a question.
    NeedsInput,
    /// A tool call needed an action of a caller, and nobody answered in time.
    RequiresAction,
    /// `tokens`, `cost_micros` or another budget is used up.
    BudgetExceeded,
    /// `turn_seconds` have elapsed.
    DeadlineExceeded,
    /// `turns` or `steps` are used up.
    MaxTurns,
    /// A caller canceled it, or a check before it started failed; see `error`.
    Canceled,
    /// The turn failed; see `error`.
    Error,
    /// The agent submitted no output that fits the schema.
    OutputInvalid,
}

impl YieldReason {
    /// Returns the state of a turn that ended for this reason.
    pub fn state(self) -> TurnState {
        match self {
            Self::Error | Self::OutputInvalid => TurnState::Error,
            Self::Completed
            | Self::NeedsInput
            | Self::RequiresAction
            | Self::BudgetExceeded
            | Self::DeadlineExceeded
            | Self::MaxTurns
            | Self::Canceled => TurnState::Ok,
        }
    }
}

/// Reason of a failed turn, or of one that a check canceled before it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnError {
    /// Stable code, such as `sandbox_unavailable`.
    pub code: String,
    pub message: String,
}

/// State of a turn, folded from its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    pub id: TurnId,
    pub state: TurnState,
    /// Number of crashes it has survived and of its retries, plus 1; 0 before it starts.
    pub attempt: i32,
    /// `seq` of the first input of its window.
    pub input_from_seq: i64,
    /// `seq` of the last input of its window; grows while queued.
    pub input_to_seq: i64,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub yield_reason: Option<YieldReason>,
    pub result_event_id: Option<EventId>,
    pub error: Option<TurnError>,
    pub active_seconds: u64,
    pub usage: Usage,
}

impl Turn {
    /// Creates a queued turn for the input at `seq`.
    pub fn queued(id: TurnId, seq: i64) -> Self {
        Self {
            id,
            state: TurnState::Queued,
            attempt: 0,
            input_from_seq: seq,
            input_to_seq: seq,
            started_at: None,
            completed_at: None,
            yield_reason: None,
            result_event_id: None,
            error: None,
            active_seconds: 0,
            usage: Usage::default(),
        }
    }

    /// Returns whether it ended with an error, so that it can be retried.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Queues a turn that ended again, with the input up to `input_to_seq`.
    pub fn requeued(self, input_to_seq: i64) -> Self {
        Self { input_to_seq, ..self.unended(TurnState::Queued) }
    }

    /// Returns the turn as it is without its end.
    pub fn unended(self, state: TurnState) -> Self {
        Self { state, completed_at: None, yield_reason: None, result_event_id: None, error: None, ..self }
    }
}

/// Summary of a turn in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastTurn {
    #[schema(value_type = String)]
    pub id: TurnId,
    pub state: TurnState,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub yield_reason: Option<YieldReason>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub result_event_id: Option<EventId>,
    /// Code of the error that it ended with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_code: Option<String>,
}

impl From<&Turn> for LastTurn {
    fn from(turn: &Turn) -> Self {
        Self {
            id: turn.id,
            state: turn.state,
            yield_reason: turn.yield_reason,
            result_event_id: turn.result_event_id,
            error_code: turn.error.as_ref().map(|error| error.code.clone()),
        }
    }
}
