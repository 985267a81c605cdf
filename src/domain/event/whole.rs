//! The bodies that are more than a few fields.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    base::Timestamp,
    domain::{
        ids::{EventId, TurnId},
        turn::{TurnError, YieldReason},
        usage::Usage,
    },
};

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
