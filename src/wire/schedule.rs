//! Schedules and their runs on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    environment::sound_choice,
    limits::LimitsInput,
    session::{InputSchema, searchable, text_or_object},
};
use crate::{
    base::{
        json,
        limit::{CRON_BYTES_MAX, NAME_BYTES_MAX},
    },
    domain::{
        AgentId, RunId, ScheduleId, SessionId, TurnId,
        environment::EnvironmentChoice,
        schedule::{Overlap, RunState},
        session::Limits,
    },
};

/// A schedule to create: each slot gets a session of its own, or wakes `session_id`.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSchedule {
    /// Five fields: minute, hour, day of month, month, day of week.
    #[garde(length(bytes, min = 9, max = CRON_BYTES_MAX))]
    pub cron: String,
    /// Name of an IANA time zone.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    #[serde(default = "utc")]
    #[schema(default = "UTC")]
    pub time_zone: String,
    /// Text, or an object whose `text` is it: what every run is told.
    #[garde(custom(given))]
    #[schema(value_type = InputSchema)]
    pub input: Value,
    /// What becomes of a slot while the run before goes on.
    #[garde(skip)]
    #[serde(default)]
    pub overlap: Overlap,
    #[garde(skip)]
    #[serde(default = "super::yes")]
    #[schema(default = true)]
    pub enabled: bool,
    /// The session to wake: one of this agent. Not with the fields below.
    #[garde(skip)]
    pub session_id: Option<SessionId>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    #[garde(inner(custom(searchable)))]
    pub metadata: Option<Map<String, Value>>,
    /// In front of the agent's own.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
    /// Id or name of an environment, or an object; read anew for each session.
    #[garde(custom(sound_choice))]
    pub environment: Option<EnvironmentChoice>,
}

/// What to change of a schedule; absent fields stay.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSchedule {
    #[garde(inner(length(bytes, min = 9, max = CRON_BYTES_MAX)))]
    pub cron: Option<String>,
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub time_zone: Option<String>,
    #[garde(custom(text_or_object))]
    #[schema(value_type = Option<InputSchema>)]
    pub input: Option<Value>,
    #[garde(skip)]
    pub overlap: Option<Overlap>,
    /// Enabling it forgets failures, and slots that were missed meanwhile.
    #[garde(skip)]
    pub enabled: Option<bool>,
    /// Null removes it.
    #[garde(inner(inner(length(bytes, max = NAME_BYTES_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    /// Replaces the whole object.
    #[garde(inner(custom(searchable)))]
    pub metadata: Option<Map<String, Value>>,
    /// Only the limits that are named change.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
    /// Null removes it.
    #[garde(inner(custom(sound_choice)))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<EnvironmentChoice>)]
    pub environment: Option<Option<EnvironmentChoice>>,
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleView {
    pub id: ScheduleId,
    pub agent_id: AgentId,
    pub cron: String,
    pub time_zone: String,
    #[schema(value_type = InputSchema)]
    pub input: Value,
    pub overlap: Overlap,
    pub enabled: bool,
    /// The session that it wakes; null where each slot gets one of its own.
    #[schema(required)]
    pub session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentChoice>,
    /// The slot that comes next; null while it is not enabled.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub next_fire_at: Option<OffsetDateTime>,
    /// Runs that failed since the last one that did not.
    pub consecutive_failures: i32,
    /// Why the service turned it off: `failing`. Enabling it again clears this.
    #[schema(required)]
    pub paused_reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A run of a schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ScheduleRun)]
pub struct RunView {
    pub id: RunId,
    pub state: RunState,
    /// The time that it is for; of one that a caller asked for, when they did.
    #[serde(with = "time::serde::rfc3339")]
    pub slot: OffsetDateTime,
    /// A caller asked for it.
    pub manual: bool,
    /// The session that it made or woke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

/// Why a run failed: for programs and for people.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunError {
    /// As in `no_credential`.
    pub code: String,
    pub message: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn given(input: &Value, context: &()) -> garde::Result {
    text_or_object(&Some(input.clone()), context)
}
