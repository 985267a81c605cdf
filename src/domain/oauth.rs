//! OAuth clients, with which the service gets access tokens itself (RFC 6749, RFC 8707).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::base::SecretString;

/// The public part of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OAuthClient {
    /// Token endpoint of the authorization server.
    pub token_url: String,
    pub client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Resource that the tokens are for, such as the address of the MCP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// The secrets of a client. With a refresh token the grant is `refresh_token`, else `client_credentials`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OAuthSecrets {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
}

/// An access token, as the token endpoint gave it.
pub struct AccessToken {
    pub token: SecretString,
    /// The refresh token from now on, if it is another one.
    pub refresh_token: Option<String>,
    /// Lifetime in seconds, if the token endpoint states it.
    pub expires_in: Option<u64>,
}
