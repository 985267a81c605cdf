//! Environments on the wire: values of secrets go in and never come out.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::{json, limit::NAME_BYTES_MAX},
    domain::{
        EnvironmentId,
        environment::{Environment, EnvironmentChoice, SECRETS_MAX, SecretBinding},
        rootfs::Build,
    },
};

/// An environment to store.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEnvironment {
    /// Unique within the organization.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
    #[garde(custom(sound))]
    #[serde(default, deserialize_with = "json::object")]
    pub config: Environment,
    #[garde(length(max = SECRETS_MAX))]
    #[serde(default, deserialize_with = "json::objects")]
    pub secrets: Vec<SecretInput>,
}

/// What to change of an environment; absent fields stay. Sessions keep what they pinned,
/// but for the values of secrets.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchEnvironment {
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub name: Option<String>,
    /// Replaces the whole of it.
    #[garde(inner(custom(sound)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub config: Option<Environment>,
    /// Replaces all of them; one without `value` keeps the value it has.
    #[garde(inner(length(max = SECRETS_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub secrets: Option<Vec<SecretInput>>,
}

/// A secret with its value.
#[derive(Clone, Deserialize, ToSchema)]
#[schema(as = EnvironmentSecret)]
#[serde(deny_unknown_fields)]
pub struct SecretInput {
    /// The variable in which commands find the placeholder.
    pub name: String,
    /// 8 to 4096 printable ASCII characters.
    pub value: Option<String>,
    /// Hosts that get the value instead; each one `config.network` allows.
    pub hosts: Vec<String>,
}

impl SecretInput {
    /// Without the value.
    pub fn binding(&self) -> SecretBinding {
        SecretBinding { name: self.name.clone(), hosts: self.hosts.clone() }
    }
}

/// An environment, without the values of its secrets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NamedEnvironment)]
pub struct EnvironmentView {
    pub id: EnvironmentId,
    pub name: String,
    pub config: Environment,
    pub secrets: Vec<SecretBinding>,
    /// How far what its image and packages come to is; null where there is nothing to make,
    /// or nobody has asked for it in the last 14 days.
    #[schema(required)]
    pub build: Option<Build>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// Refuses an environment that no sandbox can be.
pub(super) fn sound(environment: &Environment, _context: &()) -> garde::Result {
    match environment.problem() {
        None => Ok(()),
        Some((field, words)) => Err(garde::Error::new(format!("`{field}` {words}"))),
    }
}

/// Refuses a choice that is none.
pub(super) fn sound_choice(choice: &Option<EnvironmentChoice>, context: &()) -> garde::Result {
    match choice {
        None => Ok(()),
        Some(EnvironmentChoice::Inline(environment)) => sound(environment, context),
        Some(EnvironmentChoice::Named(name)) if (1..=NAME_BYTES_MAX).contains(&name.len()) => Ok(()),
        Some(EnvironmentChoice::Named(_)) => {
            Err(garde::Error::new("must be the id or name of an environment"))
        }
    }
}
