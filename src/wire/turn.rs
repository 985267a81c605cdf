//! Response bodies of turns and steps.

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::event::EventView;
use crate::domain::{
    EventId, StepId, Turn, TurnId, Usage,
    conversation::StopReason,
    turn::{TurnError, TurnState, YieldReason},
};

/// One bounded run of the agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Turn)]
pub(crate) struct TurnView {
    pub id: TurnId,
    pub state: TurnState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yield_reason: Option<YieldReason>,
    /// Number of crashes survived, plus 1; 0 while queued.
    pub attempt: i32,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<OffsetDateTime>,
    /// Seconds from start to end.
    pub active_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_event_id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// Its output, if it has an output schema; only when a single turn is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<Value>,
    pub usage: Usage,
    /// Range of the consumed input: `seq` of the first and of the last event.
    pub input_from_seq: i64,
    pub input_to_seq: i64,
}

impl From<Turn> for TurnView {
    fn from(turn: Turn) -> Self {
        Self {
            id: turn.id,
            state: turn.state,
            yield_reason: turn.yield_reason,
            attempt: turn.attempt,
            started_at: turn.started_at,
            completed_at: turn.completed_at,
            active_seconds: turn.active_seconds,
            result_event_id: turn.result_event_id,
            error: turn.error,
            output: None,
            usage: turn.usage,
            input_from_seq: turn.input_from_seq,
            input_to_seq: turn.input_to_seq,
        }
    }
}

/// Result of a session: its last turn and the agent's last message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResultView {
    #[schema(required)]
    pub last_turn: Option<TurnView>,
    /// Last user-level message of the agent in that turn.
    #[schema(required)]
    pub result: Option<EventView>,
    /// Output of that turn, if it has an output schema.
    #[schema(required, value_type = Option<Object>)]
    pub output: Option<Value>,
    /// Outputs of the turn that were rejected before.
    pub output_repairs: u32,
}

/// One completed model call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Step)]
pub(crate) struct StepView {
    #[schema(required)]
    pub id: Option<StepId>,
    #[schema(required)]
    pub turn_id: Option<TurnId>,
    pub seq: i64,
    /// Index within the turn, starting at 1.
    pub index: u64,
    pub attempt: i32,
    pub provider: String,
    pub model: String,
    pub stop: StopReason,
    pub usage: Usage,
    /// Cost of the call; null if no price list contains the model.
    #[schema(required)]
    pub cost_micros: Option<u64>,
    /// Version of the price list that was used.
    #[schema(required)]
    pub price_version: Option<String>,
    pub duration_ms: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub completed_at: OffsetDateTime,
}
