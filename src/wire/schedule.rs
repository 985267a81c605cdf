//! Request and response bodies of schedules and their runs.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    environment::validate_environment_choice,
    limits::LimitsInput,
    metadata::validate_metadata,
    session::{InputSchema, text_or_object},
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

/// Schedule to create. Each slot starts a new session, or wakes `session_id`.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSchedule {
    /// Cron expression with five fields: minute, hour, day of month, month, day of week.
    #[garde(length(bytes, min = 9, max = CRON_BYTES_MAX))]
    pub cron: String,
    /// Name of an IANA time zone.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    #[serde(default = "utc")]
    #[schema(default = "UTC")]
    pub time_zone: String,
    /// Input of every run: a string, or an object with a `text` field.
    #[garde(custom(validate_input))]
    #[schema(value_type = InputSchema)]
    pub input: Value,
    /// Handling of a slot while the previous run is still in progress.
    #[garde(skip)]
    #[serde(default)]
    pub overlap: Overlap,
    #[garde(skip)]
    #[serde(default = "super::yes")]
    #[schema(default = true)]
    pub enabled: bool,
    /// Existing session of this agent to wake. Mutually exclusive with the fields below.
    #[garde(skip)]
    pub session_id: Option<SessionId>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    #[garde(inner(custom(validate_metadata)))]
    pub metadata: Option<Map<String, Value>>,
    /// Override the agent's limits.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
    /// Id or name of an environment, or an inline object; resolved again for each session.
    #[garde(custom(validate_environment_choice))]
    pub environment: Option<EnvironmentChoice>,
}

/// Changes to a schedule; absent fields are unchanged.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchSchedule {
    #[garde(inner(length(bytes, min = 9, max = CRON_BYTES_MAX)))]
    pub cron: Option<String>,
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub time_zone: Option<String>,
    #[garde(custom(text_or_object))]
    #[schema(value_type = Option<InputSchema>)]
    pub input: Option<Value>,
    #[garde(skip)]
    pub overlap: Option<Overlap>,
    /// Enabling the schedule resets its failure count and skips slots missed while it was disabled.
    #[garde(skip)]
    pub enabled: Option<bool>,
    /// Null removes it.
    #[garde(inner(inner(length(bytes, max = NAME_BYTES_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    /// Replaces the whole object.
    #[garde(inner(custom(validate_metadata)))]
    pub metadata: Option<Map<String, Value>>,
    /// Only the named limits change.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
    /// Null removes it.
    #[garde(inner(custom(validate_environment_choice)))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<EnvironmentChoice>)]
    pub environment: Option<Option<EnvironmentChoice>>,
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Schedule)]
pub(crate) struct ScheduleView {
    pub id: ScheduleId,
    pub agent_id: AgentId,
    pub cron: String,
    pub time_zone: String,
    #[schema(value_type = InputSchema)]
    pub input: Value,
    pub overlap: Overlap,
    pub enabled: bool,
    /// The session to wake; null if each slot starts a new session.
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
    /// Time of the next slot; null while the schedule is disabled.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub next_fire_at: Option<OffsetDateTime>,
    /// Failed runs since the last successful run.
    pub consecutive_failures: i32,
    /// Reason why the service disabled the schedule: `failing`. Enabling it again clears this.
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
pub(crate) struct RunView {
    pub id: RunId,
    pub state: RunState,
    /// Time of the slot; for a manual run, the time of the request.
    #[serde(with = "time::serde::rfc3339")]
    pub slot: OffsetDateTime,
    /// True if a caller started the run.
    pub manual: bool,
    /// The session that the run created or woke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Reason for the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

/// Reason for a failed run: a code and a message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunError {
    /// Machine-readable code, for example `no_credential`.
    pub code: String,
    pub message: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

pub(super) fn validate_input(input: &Value, context: &()) -> garde::Result {
    text_or_object(&Some(input.clone()), context)
}
