//! Model calls in the log: completed or aborted.
//!
//! Bodies of `event`; their usage counts in every sum.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    conversation::{Block, StopReason},
    usage::Usage,
};

/// A completed model call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepCompleted {
    /// Index of the call, starting at 1 in each turn, across all attempts.
    pub index: u64,
    pub provider: String,
    pub model: String,
    /// The provider's blocks, verbatim and in order.
    pub raw: Vec<Value>,
    /// The same blocks in neutral form.
    pub blocks: Vec<Block>,
    pub stop: StopReason,
    pub usage: Usage,
    /// Cost of the call in micro-USD; null if no price list has the model.
    #[serde(default)]
    pub cost_micros: Option<u64>,
    /// Version of the price list that was used.
    #[serde(default)]
    pub price_version: Option<String>,
    pub attempt: i32,
    pub duration_ms: u64,
    /// Use of the call; absent, it is one of the agent's steps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub purpose: Option<StepPurpose>,
}

/// Use of a model call that is not one of the agent's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepPurpose {
    /// It summarized the history.
    Compaction,
}

/// A model call that ended without a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepAborted {
    pub provider: String,
    pub model: String,
    pub reason: Aborted,
    pub usage: Usage,
    /// Whether some usage is estimated: the provider had not reported all of it yet.
    pub estimated: bool,
    /// Cost of the call in micro-USD; null if no price list has the model.
    #[schema(required)]
    pub cost_micros: Option<u64>,
    /// Version of the price list that was used.
    #[schema(required)]
    pub price_version: Option<String>,
    pub attempt: i32,
    pub duration_ms: u64,
}

/// Reason why a model call ended without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = StepAbortReason)]
pub enum Aborted {
    /// A caller canceled the turn.
    Canceled,
    /// The turn's deadline passed.
    Deadline,
    /// The worker was shutting down; the next worker repeats the call.
    Drained,
    /// The provider failed after it had started to respond.
    Failed,
    /// The worker crashed; the next worker repeats the call.
    WorkerLost,
}
