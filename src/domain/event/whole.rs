//! The bodies that are more than a few fields.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    base::Timestamp,
    domain::{
        conversation::{Block, StopReason},
        ids::{EventId, TurnId},
        turn::{TurnError, YieldReason},
        usage::Usage,
    },
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

/// Where a tool's result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The tool ran and this is what it said.
    Ran,
    /// It never ran: canceled, refused or unknown to the catalogue.
    NotRun,
    /// A crash hid whether it ran.
    Unknown,
}

/// A failure, said for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable word, as in `overloaded`.
    pub code: String,
    pub message: String,
    /// When it is tried again.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    pub retry_at: Option<Timestamp>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnCompleted {
    pub turn_id: TurnId,
    pub yield_reason: YieldReason,
    /// The turn's last user-level `agent.message`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub result_event_id: Option<EventId>,
    pub usage: Usage,
    /// Time in which the turn was worked on, in whole seconds.
    pub active_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<TurnError>,
    /// The limit that ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<String>,
    /// Whether the session is `failed`: the turn ended before it did anything.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub failed: bool,
}
