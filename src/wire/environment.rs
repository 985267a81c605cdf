//! Request and response bodies of environments. Values of secrets are write-only.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::{json, limit::NAME_BYTES_MAX},
    domain::{
        EnvironmentId,
        environment::{Environment, EnvironmentChoice},
        rootfs::Build,
        secret::{SECRETS_MAX, SecretBinding, authorization},
    },
};

/// Environment to create.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateEnvironment {
    /// Unique within the organization.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
    #[garde(custom(validate_environment))]
    #[serde(default, deserialize_with = "json::object")]
    pub config: Environment,
    #[garde(length(max = SECRETS_MAX))]
    #[serde(default, deserialize_with = "json::objects")]
    pub secrets: Vec<SecretInput>,
}

/// Changes to an environment; absent fields are unchanged. Existing sessions keep the configuration that
/// they pinned, but use new values of its secrets.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchEnvironment {
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub name: Option<String>,
    /// Replaces the whole configuration.
    #[garde(inner(custom(validate_environment)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub config: Option<Environment>,
    /// Replaces the whole list; a secret without `value` keeps its current value.
    #[garde(inner(length(max = SECRETS_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub secrets: Option<Vec<SecretInput>>,
}

/// Secret with its value.
#[derive(Clone, Deserialize, ToSchema)]
#[schema(as = EnvironmentSecret)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretInput {
    /// Environment variable that holds the secret's placeholder in commands.
    pub name: String,
    /// 8 to 4096 printable ASCII characters.
    pub value: Option<String>,
    /// Hosts to which the egress proxy sends the value in place of the placeholder. `config.network` must
    /// allow each of them.
    pub hosts: Vec<String>,
    /// Request headers in which the placeholder may stand. `["authorization"]` unless given; in another header the
    /// request is refused. The placeholder may stand after a scheme and in the password of Basic authentication.
    #[serde(default = "authorization")]
    #[schema(default = json!(["authorization"]))]
    pub headers: Vec<String>,
    /// Parameters of the query in which the placeholder may stand; none unless given.
    #[serde(default)]
    pub query_parameters: Vec<String>,
}

impl SecretInput {
    /// The secret without its value.
    pub(crate) fn binding(&self) -> SecretBinding {
        let Self { name, value: _, hosts, headers, query_parameters } = self.clone();
        SecretBinding { name, hosts, headers, query_parameters }
    }
}

/// Environment, without the values of its secrets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NamedEnvironment)]
pub(crate) struct EnvironmentView {
    pub id: EnvironmentId,
    pub name: String,
    pub config: Environment,
    pub secrets: Vec<SecretBinding>,
    /// State of the root file system build for its image and packages. Null if nothing needs to be built,
    /// or if no build was requested in the last 14 days.
    #[schema(required)]
    pub build: Option<Build>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// Rejects an environment that no sandbox can be created from.
pub(super) fn validate_environment(environment: &Environment, _context: &()) -> garde::Result {
    match environment.problem() {
        None => Ok(()),
        Some((field, words)) => Err(garde::Error::new(format!("`{field}` {words}"))),
    }
}

/// Rejects an invalid inline environment and a name or id of invalid length.
pub(super) fn validate_environment_choice(choice: &Option<EnvironmentChoice>, context: &()) -> garde::Result {
    match choice {
        None => Ok(()),
        Some(EnvironmentChoice::Inline(environment)) => validate_environment(environment, context),
        Some(EnvironmentChoice::Named(name)) if (1..=NAME_BYTES_MAX).contains(&name.len()) => Ok(()),
        Some(EnvironmentChoice::Named(_)) => {
            Err(garde::Error::new("must be the id or name of an environment"))
        }
    }
}
