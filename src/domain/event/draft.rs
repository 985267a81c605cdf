//! An event around its body: actor, level and references, and its place in the log.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Actor, Body, Level};
use crate::{base::Timestamp, domain::ids::*};

/// An event with the `seq` and time that the log assigned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Gapless, starting at 1 in each session.
    pub seq: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub ts: Timestamp,
    #[serde(flatten)]
    pub draft: Draft,
}

/// An event before it is appended: everything but `seq` and `ts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    pub id: EventId,
    pub actor: Actor,
    pub level: Level,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub turn_id: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step_id: Option<StepId>,
    /// External references of the event, verbatim from the caller.
    #[serde(default)]
    pub refs: Map<String, Value>,
    #[serde(flatten)]
    pub body: Body,
}
