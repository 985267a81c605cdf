//! Request and response bodies of credentials. Keys are write-only.

use std::collections::BTreeMap;

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::{
        json,
        limit::{
            CREDENTIAL_BYTES_MAX, LIST_ITEM_BYTES_MAX, NAME_BYTES_MAX, NET_URL_BYTES_MAX,
            PROVIDER_HEADER_NAME_BYTES_MAX, PROVIDER_HEADERS_MAX,
        },
    },
    domain::{CredentialId, oauth::OAuthClient},
};

/// Provider key to store.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateCredential {
    /// `anthropic` (default), `openai`, any other name together with a `base_url`, `git` for repositories, or `mcp` for MCP
    /// servers.
    #[garde(length(bytes, min = 1, max = LIST_ITEM_BYTES_MAX), custom(provider_name))]
    #[serde(default = "anthropic")]
    pub provider: String,
    /// The key; required unless `oauth` is given.
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub key: Option<String>,
    /// For `mcp`: the client with which the service gets access tokens, instead of a key.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub oauth: Option<OAuthInput>,
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub name: Option<String>,
    /// Use this credential for agents without one of their own.
    #[garde(skip)]
    #[serde(default)]
    pub is_default: bool,
    /// Endpoint that implements the provider's protocol. For `git`: the host, or a path prefix on it, of
    /// the repositories that the key may be sent to, for example `https://github.com/acme`.
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub base_url: Option<String>,
    /// Header of the key: absent, `x-api-key` for `anthropic`, and for the others `authorization`, as a bearer token.
    #[garde(inner(length(bytes, min = 1, max = PROVIDER_HEADER_NAME_BYTES_MAX)))]
    pub key_header: Option<String>,
    /// Further headers of each call of the model, such as `anthropic-beta`; at most 16. Their values are stored like the
    /// key and not returned.
    #[garde(length(max = PROVIDER_HEADERS_MAX))]
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// OAuth client of an MCP server. The service gets its access tokens, with the grant `refresh_token` if there is a refresh
/// token, else `client_credentials`.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OAuthClientInput)]
pub(crate) struct OAuthInput {
    /// Token endpoint of the authorization server.
    #[garde(length(bytes, min = 1, max = NET_URL_BYTES_MAX))]
    pub token_url: String,
    #[garde(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX))]
    pub client_id: String,
    /// Required without a refresh token.
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub client_secret: Option<String>,
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub refresh_token: Option<String>,
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub scope: Option<String>,
    /// Resource that the tokens are for, such as the address of the server.
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub resource: Option<String>,
}

/// New key of a credential, or new client of one with an OAuth client.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateCredential {
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub key: Option<String>,
    /// Replaces the whole client.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub oauth: Option<OAuthInput>,
    /// Replaces all headers; absent, they stay.
    #[garde(inner(length(max = PROVIDER_HEADERS_MAX)))]
    pub headers: Option<BTreeMap<String, String>>,
}

/// Credential to make the default of its provider.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DefaultCredential {
    /// Id or name of the credential; `credential_id` is accepted too.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    #[serde(alias = "credential_id")]
    pub credential: String,
    /// If given, must equal the credential's provider.
    #[garde(skip)]
    pub provider: Option<String>,
}

/// Credential, without its key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Credential)]
pub(crate) struct CredentialView {
    pub id: CredentialId,
    pub provider: String,
    #[schema(required)]
    pub name: Option<String>,
    /// Last characters of the key, to tell keys apart; of an OAuth client, those of its refresh token or its secret.
    pub last4: String,
    pub is_default: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Header of the key, if it is not that of the provider's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_header: Option<String>,
    /// Names of the further headers of each call.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub headers: Vec<String>,
    /// The OAuth client, without its secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<OAuthView>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// OAuth client of a credential.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OAuthClientState)]
pub(crate) struct OAuthView {
    #[serde(flatten)]
    pub client: OAuthClient,
    /// End of the access token, if there is one that has an end.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<OffsetDateTime>,
    /// Whether the token endpoint refused the client: replace it with a `PATCH`.
    pub needs_auth: bool,
}

fn anthropic() -> String {
    "anthropic".to_owned()
}

fn provider_name(name: &str, _context: &()) -> garde::Result {
    let valid = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if valid { Ok(()) } else { Err(garde::Error::new("may have only lower-case letters, digits and dashes")) }
}
