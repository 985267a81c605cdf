//! Request and response bodies of client tokens.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::Level;

/// Client token to create.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MintClientToken {
    /// `read`, `steer`, `answer` and `approve`; the first two when absent. `read` needs a key with the scope
    /// `sessions:read`, `approve` one with `sessions:approve`.
    #[garde(inner(length(min = 1, max = 4)))]
    pub scopes: Option<Vec<ClientScope>>,
    /// Lifetime in seconds: 60 to 86400 (clamped), default 3600.
    #[garde(skip)]
    pub ttl: Option<i64>,
    /// Highest event level that the token can read; `progress` when absent.
    #[garde(skip)]
    pub level: Option<Level>,
}

/// Permission of a client token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientScope {
    Read,
    Steer,
    /// Claim calls of custom tools and send their results.
    Answer,
    /// Confirm and reject calls.
    Approve,
}

/// Client token; returned once.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ClientToken)]
pub(crate) struct ClientTokenView {
    pub token: String,
    /// Same value as `token`, under the name that session creation uses.
    pub client_token: String,
    pub scopes: Vec<ClientScope>,
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}
