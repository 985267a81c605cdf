//! Inbound triggers on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{environment::sound_choice, limits::LimitsInput, session::searchable};
use crate::{
    base::{
        json,
        limit::{NAME_BYTES_MAX, TRIGGER_SECRET_BYTES_MIN},
    },
    domain::{
        AgentId, SessionId, TriggerId,
        environment::EnvironmentChoice,
        session::Limits,
        trigger::{Authors, Checkout, Ignored, Kind, React},
    },
};

/// A trigger to create.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTrigger {
    #[garde(skip)]
    pub kind: Kind,
    /// What messages are signed with; one is made when absent.
    #[garde(inner(length(bytes, min = TRIGGER_SECRET_BYTES_MIN, max = 256)))]
    #[schema(min_length = 16, max_length = 256)]
    pub secret: Option<String>,
    #[garde(skip)]
    #[serde(default = "super::yes")]
    #[schema(default = true)]
    pub enabled: bool,
    /// GitHub only: a user name without `@`; a new comment that names it starts a session.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub mention: Option<String>,
    /// GitHub only: events that start a session, with the actions that count.
    #[garde(inner(length(max = 16)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub react: Option<Vec<React>>,
    /// GitHub only: whose words start a session; `members` when absent.
    #[garde(skip)]
    pub authors: Option<Authors>,
    /// GitHub only: how the repository is cloned for the session. When absent it is cloned
    /// whole, with null not at all.
    #[garde(skip)]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Checkout>)]
    pub source: Option<Option<Checkout>>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    /// Of its sessions; those from GitHub have `github` beside it.
    #[garde(custom(searchable))]
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// In front of the agent's own.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub limits: LimitsInput,
    /// Id or name of an environment, or an object; read anew for each session.
    #[garde(custom(sound_choice))]
    pub environment: Option<EnvironmentChoice>,
}

/// What to change of a trigger; absent fields stay.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTrigger {
    #[garde(skip)]
    pub enabled: Option<bool>,
    /// Null removes it.
    #[garde(inner(inner(length(bytes, min = 1, max = NAME_BYTES_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>)]
    pub mention: Option<Option<String>>,
    /// Replaces the whole list.
    #[garde(inner(length(max = 16)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub react: Option<Vec<React>>,
    #[garde(skip)]
    pub authors: Option<Authors>,
    /// Replaces the whole of it; null for no clone.
    #[garde(skip)]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Checkout>)]
    pub source: Option<Option<Checkout>>,
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

/// An inbound trigger.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Trigger)]
pub struct TriggerView {
    pub id: TriggerId,
    pub agent_id: AgentId,
    pub kind: Kind,
    /// Where messages are sent, below the address of this service.
    pub path: String,
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mention: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub react: Option<Vec<React>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authors: Option<Authors>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Checkout>,
    #[schema(required)]
    pub title: Option<String>,
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentChoice>,
    pub has_secret: bool,
    /// The secret, in the answer that made it and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Until when signatures with the replaced secret count too.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub secret_before_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// What became of a message to a trigger.
#[derive(Debug, Serialize, ToSchema)]
pub struct TriggerAnswer {
    /// The session that it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Why it started none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Ignored>,
}
