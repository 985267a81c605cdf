//! Provider keys on the wire: they go in and never come out.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{CREDENTIAL_BYTES_MAX, NAME_BYTES_MAX, NET_URL_BYTES_MAX, WORD_BYTES_MAX},
    domain::CredentialId,
};

/// A provider key to store.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateCredential {
    /// `anthropic` (default), `openai`, or any name together with a `base_url`; `git` for
    /// repositories.
    #[garde(length(bytes, min = 1, max = WORD_BYTES_MAX), custom(provider_name))]
    #[serde(default = "anthropic")]
    pub provider: String,
    #[garde(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX))]
    pub key: String,
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub name: Option<String>,
    /// Use it for agents without a credential of their own.
    #[garde(skip)]
    #[serde(default)]
    pub is_default: bool,
    /// Another endpoint that speaks the provider's protocol. Of `git`: the host, or the part
    /// of it, whose repositories the key opens, as in `https://github.com/acme`.
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub base_url: Option<String>,
}

/// A new key behind a credential.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateCredential {
    #[garde(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX))]
    pub key: String,
}

/// Which credential becomes the default for its provider.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DefaultCredential {
    #[garde(skip)]
    pub credential: CredentialId,
    /// Must be the credential's own, when given.
    #[garde(skip)]
    pub provider: Option<String>,
}

/// What may be shown of a credential.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Credential)]
pub struct CredentialView {
    pub id: CredentialId,
    pub provider: String,
    #[schema(required)]
    pub name: Option<String>,
    /// The end of the key, to tell keys apart.
    pub last4: String,
    pub is_default: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

fn anthropic() -> String {
    "anthropic".to_owned()
}

fn provider_name(name: &str, _context: &()) -> garde::Result {
    let valid = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if valid { Ok(()) } else { Err(garde::Error::new("takes lower-case letters, digits and dashes")) }
}
