//! Request and response bodies of inbound triggers.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{environment::validate_environment_choice, limits::LimitsInput, metadata::validate_metadata};
use crate::{
    base::{
        json,
        limit::{
            NAME_BYTES_MAX, TRIGGER_SECRET_BYTES_MIN, WEBHOOK_OVERLAP_SECONDS, WEBHOOK_SECRET_BYTES_MAX,
        },
    },
    domain::{
        AgentId, SessionId, TriggerId,
        environment::EnvironmentChoice,
        session::Limits,
        trigger::{Authors, Checkout, Ignored, Kind, React},
    },
};

/// Trigger to create.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTrigger {
    #[garde(skip)]
    pub kind: Kind,
    /// Secret that senders sign messages with; generated when absent.
    #[garde(inner(length(bytes, min = TRIGGER_SECRET_BYTES_MIN, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    #[garde(skip)]
    #[serde(default = "super::yes")]
    #[schema(default = true)]
    pub enabled: bool,
    /// GitHub only: user name without `@`. A new comment that mentions it starts a session.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub mention: Option<String>,
    /// GitHub only: events that start a session, with the actions to react to.
    #[garde(inner(length(max = 16)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub react: Option<Vec<React>>,
    /// GitHub only: authors whose issues and comments start a session; `members` when absent.
    #[garde(skip)]
    pub authors: Option<Authors>,
    /// GitHub only: options for cloning the repository. When absent, default options apply; null disables
    /// the clone.
    #[garde(skip)]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<Checkout>)]
    pub source: Option<Option<Checkout>>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    /// Metadata of its sessions. Sessions started by GitHub also have `github`.
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

/// Changes to a trigger; absent fields are unchanged.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchTrigger {
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
    /// Replaces the whole object; null disables the clone.
    #[garde(skip)]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<Checkout>)]
    pub source: Option<Option<Checkout>>,
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

/// Options for replacing a trigger's secret.
#[derive(Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RotateTriggerSecret {
    /// The new secret; generated when absent.
    #[garde(inner(length(bytes, min = TRIGGER_SECRET_BYTES_MIN, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    /// Seconds for which both secrets are accepted: 0 to 604800, default 86400.
    #[garde(range(min = 0, max = WEBHOOK_OVERLAP_SECONDS.1))]
    #[schema(minimum = 0, maximum = 604800)]
    pub overlap_seconds: Option<i64>,
}

/// Inbound trigger of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Trigger)]
pub(crate) struct TriggerView {
    pub id: TriggerId,
    pub agent_id: AgentId,
    pub kind: Kind,
    /// Path, on this service, to which messages are sent.
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
    /// The generated secret; only in the response to the request that generated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Time until which signatures made with the previous secret are also accepted.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub secret_before_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// Result of a message to a trigger.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TriggerAnswer {
    /// The session that the message started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Reason why the message did not start a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Ignored>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_object_or_null_and_no_array_of_its_fields() {
        let source = |json: &str| serde_json::from_str::<PatchTrigger>(json).map(|change| change.source);
        assert!(source(r#"{"source": [null, null]}"#).is_err());
        assert!(serde_json::from_str::<CreateTrigger>(r#"{"kind": "github", "source": []}"#).is_err());
        assert_eq!(source("{}").expect("absent"), None);
        assert_eq!(source(r#"{"source": null}"#).expect("null"), Some(None));
        assert_eq!(source(r#"{"source": {}}"#).expect("an object"), Some(Some(Checkout::default())));
    }
}
