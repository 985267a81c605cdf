//! A turn: one bounded run of the agent over the input that waited for it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ids::*, usage::Usage};
use crate::base::Timestamp;

/// Where a turn is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    /// Waits for a worker; input may still join it.
    Queued,
    /// A worker runs it.
    Running,
    /// Ended as its yield reason says.
    Ok,
    /// Ended by an error.
    Error,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum YieldReason {
    /// The agent is done.
    Completed,
    /// The agent asked a question.
    NeedsInput,
    /// A tool waits for its caller.
    RequiresAction,
    /// `tokens`, `cost_micros` or another budget is used up.
    BudgetExceeded,
    /// `turn_seconds` are over.
    DeadlineExceeded,
    /// `turns` or `steps` are used up.
    MaxTurns,
    /// A caller canceled it.
    Canceled,
    /// It could not go on; see `error`.
    Error,
}

impl YieldReason {
    /// The state of a turn that ended for this reason.
    pub fn state(self) -> TurnState {
        match self {
            Self::Error => TurnState::Error,
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

/// Why a turn could not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnError {
    /// Stable word, as in `sandbox_unavailable`.
    pub code: String,
    pub message: String,
}

/// A turn as its events leave it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    pub id: TurnId,
    pub state: TurnState,
    /// Crashes it has survived, plus one; 0 while queued.
    pub attempt: i32,
    /// First input of its window.
    pub input_from_seq: i64,
    /// Last input of its window; grows while queued.
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
    /// A turn that waits for a worker, made by the input at `seq`.
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
}

/// The short form of a turn that a session carries.
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
