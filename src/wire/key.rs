//! Request and response bodies of API keys.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{KEY_OVERLAP_SECONDS, KEY_SCOPES_MAX, LIST_ITEM_BYTES_MAX, NAME_BYTES_MAX},
    domain::{KeyId, session::Source},
};

/// API key to create.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// Display name.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
    /// Scopes of the key, for example `sessions:read`, `agents:*` or `*`; limited to those of the
    /// caller's own key.
    #[garde(length(min = 1, max = KEY_SCOPES_MAX), inner(length(bytes, min = 1, max = LIST_ITEM_BYTES_MAX)))]
    pub scopes: Vec<String>,
    /// Expiration time; the key does not expire when absent.
    #[garde(skip)]
    #[serde(default, with = "time::serde::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<OffsetDateTime>,
    /// Value of `source` in the sessions that this key creates.
    #[garde(skip)]
    #[serde(default)]
    pub source: KeySource,
}

/// Purpose of a key: `cli` for interactive use, `api` for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    #[default]
    Api,
    Cli,
}

impl From<KeySource> for Source {
    fn from(source: KeySource) -> Self {
        match source {
            KeySource::Api => Self::Api,
            KeySource::Cli => Self::Cli,
        }
    }
}

impl From<Source> for KeySource {
    fn from(source: Source) -> Self {
        if source == Source::Cli { Self::Cli } else { Self::Api }
    }
}

/// Options of a key rotation.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RotateKey {
    /// Seconds for which the old key stays valid: 0 to 604800, default 86400.
    #[garde(range(min = 0, max = KEY_OVERLAP_SECONDS.1))]
    #[schema(minimum = 0, maximum = 604800)]
    pub overlap_seconds: Option<i64>,
}

/// An API key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
pub(crate) struct KeyView {
    pub id: KeyId,
    pub name: String,
    /// Last characters of the key, to tell keys apart.
    pub hint: String,
    pub scopes: Vec<String>,
    pub source: KeySource,
    /// The key itself; only in the response to the request that created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<OffsetDateTime>,
    /// Accurate to the minute.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}
