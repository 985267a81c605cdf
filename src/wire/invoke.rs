//! Request and response bodies of an agent's invoke URL and its tokens.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    environment::validate_environment_choice, limits::LimitsInput, metadata::validate_metadata,
    schedule::validate_input, session::InputSchema,
};
use crate::{
    base::{json, limit::NAME_BYTES_MAX},
    domain::{AgentId, InvokeTokenId, environment::EnvironmentChoice, session::Limits},
};

/// Session to start at an agent's invoke URL.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InvokeAgent {
    /// First input: a string, or an object with a `text` field.
    #[garde(custom(validate_input))]
    #[schema(value_type = InputSchema)]
    pub input: Value,
    /// The title of the invoke token when absent.
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    /// Caller-defined metadata. The metadata of the invoke token overrides fields of the same name.
    #[garde(custom(validate_metadata))]
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

/// Invoke token to create.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateInvokeToken {
    /// Display name, for example of the program that uses it.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
    /// Title of its sessions, unless a request sets one.
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    /// Metadata of its sessions.
    #[garde(custom(validate_metadata))]
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// Override the agent's limits.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub limits: LimitsInput,
    /// Id or name of an environment, or an inline object; resolved again for each session.
    #[garde(custom(validate_environment_choice))]
    pub environment: Option<EnvironmentChoice>,
}

/// Token that starts sessions of one agent, and nothing else.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InvokeToken)]
pub(crate) struct InvokeTokenView {
    pub id: InvokeTokenId,
    pub agent_id: AgentId,
    pub name: String,
    /// Last characters of the token, to tell tokens apart.
    pub hint: String,
    /// Path, on this service, at which the token is accepted.
    pub path: String,
    /// The token itself; only in the response to the request that created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[schema(required)]
    pub title: Option<String>,
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentChoice>,
    /// Accurate to the minute.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}
