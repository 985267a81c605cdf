//! Model calls as the log tells of them: answered, or cut off.
//!
//! Bodies of `event`: what they used adds to every sum.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    conversation::{Block, StopReason},
    usage::Usage,
};

/// The whole of one answered model call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepCompleted {
    /// From 1 within the turn, over all attempts.
    pub index: u64,
    pub provider: String,
    pub model: String,
    /// The provider's blocks, verbatim and in order.
    pub raw: Vec<Value>,
    /// The same in neutral form.
    pub blocks: Vec<Block>,
    pub stop: StopReason,
    pub usage: Usage,
    /// What the call cost; null when no price list knew the model.
    #[serde(default)]
    pub cost_micros: Option<u64>,
    /// The version of the price list that knew it.
    #[serde(default)]
    pub price_version: Option<String>,
    pub attempt: i32,
    pub duration_ms: u64,
}

/// A model call that ended without an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepAborted {
    pub provider: String,
    pub model: String,
    pub reason: Aborted,
    pub usage: Usage,
    /// Somebody had to guess: the provider had not counted all of it yet.
    pub estimated: bool,
    /// What the call cost; null when no price list knew the model.
    pub cost_micros: Option<u64>,
    /// The version of the price list that knew it.
    pub price_version: Option<String>,
    pub attempt: i32,
    pub duration_ms: u64,
}

/// Why a model call ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aborted {
    /// A caller canceled the turn.
    Canceled,
    /// The turn's time was over.
    Deadline,
    /// Its worker was asked to stop; the next one makes it again.
    Drained,
    /// The provider failed after it had begun to answer.
    Failed,
    /// Its worker died; the next one makes it again.
    WorkerLost,
}
