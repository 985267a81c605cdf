//! Requests to token endpoints of OAuth 2.0 (RFC 6749, sections 4.4 and 6; RFC 8707 for `resource`).

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::{Method, header::AUTHORIZATION};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use url::{Url, form_urlencoded};

use super::Clients;
use crate::{
    base::{
        limit::{MODEL_REASON_BYTES_MAX, OAUTH_REQUEST_TIMEOUT, OAUTH_RESPONSE_BYTES_MAX},
        text,
    },
    domain::{
        OrgId,
        oauth::{AccessToken, OAuthClient, OAuthSecrets},
    },
    net,
};

/// Why there is no access token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// The client or its refresh token is not valid; only a new one helps.
    #[error("the token endpoint refused the client: {0}")]
    Refused(String),
    /// A later attempt may help.
    #[error("the token endpoint gave no token: {0}")]
    Unavailable(String),
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    token_type: Option<String>,
    /// A number; some endpoints send it as text.
    #[serde(default)]
    expires_in: Value,
    #[serde(default)]
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
struct Denied {
    error: String,
    #[serde(default)]
    error_description: Option<String>,
}

/// Errors that another attempt with the same client meets again (RFC 6749, section 5.2).
const FINAL: [&str; 6] = [
    "invalid_client",
    "invalid_grant",
    "invalid_scope",
    "invalid_target",
    "unauthorized_client",
    "unsupported_grant_type",
];
/// Statuses of such answers; some endpoints answer 200.
const DENYING: [u16; 4] = [200, 400, 401, 403];

impl Clients {
    /// Requests an access token.
    ///
    /// # Errors
    /// `Refused` and `Unavailable`; no text has a secret of the client.
    pub async fn token(
        &self,
        org: OrgId,
        client: &OAuthClient,
        secrets: &OAuthSecrets,
    ) -> Result<AccessToken, NoToken> {
        let unavailable = |reason: String| NoToken::Unavailable(reason);
        let url = net::parse(&client.token_url).map_err(|refused| unavailable(refused.to_string()))?;
        let answered =
            timeout(OAUTH_REQUEST_TIMEOUT, net::for_org(org, self.ask(&url, client, secrets))).await;
        let (status, body) = match answered {
            Ok(answered) => answered?,
            Err(_) => {
                let seconds = OAUTH_REQUEST_TIMEOUT.as_secs();
                return Err(unavailable(format!("it did not answer within {seconds} s")));
            }
        };
        if (200..300).contains(&status)
            && let Ok(granted) = serde_json::from_slice::<Granted>(&body)
        {
            let is_bearer =
                granted.token_type.as_ref().is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
            if !is_bearer || granted.access_token.is_empty() {
                return Err(unavailable("it gave no bearer token".to_owned()));
            }
            return Ok(AccessToken {
                token: granted.access_token.into(),
                refresh_token: granted.refresh_token.filter(|token| !token.is_empty()),
                expires_in: seconds(&granted.expires_in),
            });
        }
        let Ok(denied) = serde_json::from_slice::<Denied>(&body) else {
            return Err(unavailable(format!("HTTP {status} without an answer of RFC 6749")));
        };
        let details = denied.error_description.map(|words| format!(": {words}")).unwrap_or_default();
        let words = without_secrets(format!("{}{details}", denied.error), secrets);
        let words = text::truncate(&words, MODEL_REASON_BYTES_MAX).to_owned();
        let is_final = FINAL.contains(&denied.error.as_str()) && DENYING.contains(&status);
        Err(if is_final { NoToken::Refused(words) } else { unavailable(words) })
    }

    /// Returns the status of the answer, and its body.
    async fn ask(
        &self,
        url: &Url,
        client: &OAuthClient,
        secrets: &OAuthSecrets,
    ) -> Result<(u16, Vec<u8>), NoToken> {
        let unavailable = |reason: &dyn std::fmt::Display| NoToken::Unavailable(reason.to_string());
        let request = self.net.request(Method::POST, url).map_err(|refused| unavailable(&refused))?;
        let mut request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form(client, secrets));
        if let Some(secret) = &secrets.client_secret {
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let pair = format!("{}:{}", encoded(&client.client_id), encoded(secret));
            request = request.header(AUTHORIZATION, format!("Basic {}", BASE64_STANDARD.encode(pair)));
        }
        let lost = |error: reqwest::Error| match net::refusal(&error) {
            Some(refused) => unavailable(refused),
            None if error.is_connect() => unavailable(&"it cannot be reached"),
            None => unavailable(&"the connection broke"),
        };
        let mut response = request.send().await.map_err(lost)?;
        let (status, mut body) = (response.status().as_u16(), Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            body.extend_from_slice(&chunk);
            if body.len() > OAUTH_RESPONSE_BYTES_MAX {
                return Err(unavailable(&format!(
                    "its answer has more than {OAUTH_RESPONSE_BYTES_MAX} bytes"
                )));
            }
        }
        Ok((status, body))
    }
}

/// Returns a lifetime in seconds.
fn seconds(stated: &Value) -> Option<u64> {
    let seconds = stated.as_f64().or_else(|| stated.as_str()?.parse().ok())?;
    (seconds >= 0.0).then_some(seconds as u64)
}

/// Replaces the secrets of a client in what a token endpoint said.
fn without_secrets(words: String, secrets: &OAuthSecrets) -> String {
    let secrets = [&secrets.client_secret, &secrets.refresh_token].into_iter().flatten();
    secrets.filter(|secret| !secret.is_empty()).fold(words, |words, secret| words.replace(secret, "[secret]"))
}

fn form(client: &OAuthClient, secrets: &OAuthSecrets) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    match &secrets.refresh_token {
        Some(token) => form.append_pair("grant_type", "refresh_token").append_pair("refresh_token", token),
        None => form.append_pair("grant_type", "client_credentials"),
    };
    if secrets.client_secret.is_none() {
        form.append_pair("client_id", &client.client_id);
    }
    for (name, value) in [("scope", &client.scope), ("resource", &client.resource)] {
        if let Some(value) = value {
            form.append_pair(name, value);
        }
    }
    form.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lifetimes_are_numbers_or_texts_and_errors_have_no_secret() {
        for (stated, read) in [
            (json!(3600), Some(3600)),
            (json!("60"), Some(60)),
            (json!(0.5), Some(0)),
            (json!(-1), None),
            (json!("soon"), None),
            (Value::Null, None),
        ] {
            assert_eq!(seconds(&stated), read, "{stated}");
        }
        let secrets =
            OAuthSecrets { client_secret: Some("hush".to_owned()), refresh_token: Some("first".to_owned()) };
        assert_eq!(without_secrets("no first, hush".to_owned(), &secrets), "no [secret], [secret]");
    }

    #[test]
    fn the_grant_is_that_of_what_the_client_has() {
        let client = OAuthClient {
            token_url: "https://auth.example.com/token".to_owned(),
            client_id: "a client".to_owned(),
            scope: Some("read write".to_owned()),
            resource: None,
        };
        let refreshed = OAuthSecrets { client_secret: None, refresh_token: Some("r&t".to_owned()) };
        assert_eq!(
            form(&client, &refreshed),
            "grant_type=refresh_token&refresh_token=r%26t&client_id=a+client&scope=read+write"
        );
        let own = OAuthSecrets { client_secret: Some("s".to_owned()), refresh_token: None };
        assert_eq!(form(&client, &own), "grant_type=client_credentials&scope=read+write");
    }
}
