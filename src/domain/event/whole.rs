//! Event bodies with more than a few fields.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    base::Timestamp,
    domain::{
        ids::{EventId, TurnId},
        turn::{TurnError, YieldReason},
        usage::Usage,
    },
};

/// Mode of a cancel request for a running turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelMode {
    /// End the turn.
    Cancel,
    /// End the turn and continue with the input that requested it.
    Interrupt,
}

/// Origin of a tool result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The tool ran and returned this result.
    Ran,
    /// The tool did not run: canceled, refused, or not in the catalog.
    NotRun,
    /// Unknown, because of a crash, whether the tool ran.
    Unknown,
}

/// Returns whether a field is left out, because it is zero.
pub(super) fn is_zero<T: PartialEq + Default>(number: &T) -> bool {
    *number == T::default()
}

/// An output that does not fit the schema of its turn, or the lack of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RejectedOutput {
    /// The call that submitted it; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub call_id: Option<String>,
    /// The first faults, each with its place in the output.
    pub faults: Vec<String>,
}

/// A failure, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// Stable code, such as `overloaded`.
    pub code: String,
    pub message: String,
    /// The model that failed, as `provider/model`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<String>,
    /// Time of the next retry, if there is one.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub retry_at: Option<Timestamp>,
}

/// Result of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnCompleted {
    pub turn_id: TurnId,
    pub yield_reason: YieldReason,
    /// The turn's last user-level `agent.message`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub result_event_id: Option<EventId>,
    pub usage: Usage,
    /// Time that workers spent on the turn, in whole seconds.
    pub active_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<TurnError>,
    /// The output of a completed turn that has an output schema.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<Value>,
    /// Rejected outputs of the turn.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub output_repairs: u32,
    /// The limit that ended the turn.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<String>,
    /// Whether the session becomes `failed`: the turn ended before it did anything.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub failed: bool,
}
