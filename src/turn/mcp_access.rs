//! What authorizes requests to an MCP server: a stored credential, opened when a connection first needs it. The access
//! token of an OAuth client is refreshed by one process; the others read it again.

use async_trait::async_trait;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};
use url::Url;

use crate::{
    base::{
        ExposeSecret, Origin, SecretString,
        limit::{OAUTH_POLL, OAUTH_WAIT},
    },
    domain::{CredentialId, Notice, OrgId},
    mcp::{Access, AccessSource, Clients, NoToken},
    net,
    store::{
        self, Store,
        credential::OpenCredential,
        oauth::{NewToken, OAuthToken},
    },
};

/// The credential of a server, if it has one.
pub(super) struct StoredAccess {
    clients: Clients,
    store: Store,
    origin: Origin,
    org: OrgId,
    credential: Option<CredentialId>,
    url: Url,
    opened: Mutex<Option<Access>>,
}

impl StoredAccess {
    pub(super) fn new(
        clients: Clients,
        (store, origin): (Store, Origin),
        org: OrgId,
        credential: Option<CredentialId>,
        url: &Url,
    ) -> Self {
        Self { clients, store, origin, org, credential, url: url.clone(), opened: Mutex::default() }
    }

    async fn open(&self, credential: CredentialId, refused: Option<&SecretString>) -> Result<Access, String> {
        let open = self.store.open_credential(self.org, credential).await.map_err(unreadable)?;
        let OpenCredential { base_url, key, key_header, headers, .. } = open;
        // The address of the server may have been changed since the credential was checked.
        let base = base_url.and_then(|base| net::parse(&base).ok());
        if base.is_none_or(|base| base.origin() != self.url.origin()) {
            return Err("its credential is for another origin".to_owned());
        }
        let token = self.oauth(credential, refused).await?.unwrap_or(key);
        Ok(Access { token: Some(token), key_header, headers })
    }

    /// Returns the access token of an OAuth client, another one than that which was `refused`; `None` for a credential
    /// with a key of its own.
    async fn oauth(
        &self,
        credential: CredentialId,
        refused: Option<&SecretString>,
    ) -> Result<Option<SecretString>, String> {
        let until = Instant::now() + OAUTH_WAIT;
        loop {
            let token = self.store.oauth_token(self.org, credential).await.map_err(unreadable)?;
            let Some(token) = token else { return Ok(None) };
            if token.is_refused {
                return Err(
                    "its credential needs a new authorization: the token endpoint refused it".to_owned()
                );
            }
            let is_refused = refused.is_some_and(|refused| is_same(refused, &token.access));
            if token.is_valid && !is_refused {
                return Ok(Some(token.access));
            }
            let begun = self.store.begin_refresh(self.org, credential, token.generation).await;
            if begun.map_err(unreadable)? {
                self.refresh(credential, token).await?;
            } else if Instant::now() < until {
                // Another process has it.
                sleep(OAUTH_POLL).await;
            } else {
                return Err("its access token is being refreshed".to_owned());
            }
        }
    }

    async fn refresh(&self, credential: CredentialId, token: OAuthToken) -> Result<(), String> {
        let OAuthToken { client, secrets, generation, .. } = token;
        let ended = match self.clients.token(self.org, &client, &secrets).await {
            Ok(token) => {
                let new = NewToken {
                    access: token.access,
                    refresh_token: token.refresh_token,
                    expires_in: token.expires_in,
                };
                self.store.store_token(self.org, credential, generation, (&new, secrets), &self.origin).await
            }
            Err(NoToken::Refused(reason)) => {
                let notice = Notice::credential_refused(credential, &reason, &self.origin);
                self.store.refuse_refresh(self.org, credential, generation, &notice).await
            }
            Err(reason @ NoToken::Unavailable(_)) => {
                self.store.end_refresh(self.org, credential, generation).await.map_err(unreadable)?;
                return Err(reason.to_string());
            }
        };
        ended.map_err(unreadable)
    }
}

fn unreadable(error: store::Error) -> String {
    match error {
        store::Error::NotFound => "its credential was deleted".to_owned(),
        error => {
            tracing::warn!(%error, "a credential of an MCP server could not be read");
            "its credential cannot be read now".to_owned()
        }
    }
}

fn is_same(one: &SecretString, other: &SecretString) -> bool {
    one.expose_secret() == other.expose_secret()
}

#[async_trait]
impl AccessSource for StoredAccess {
    async fn access(&self, refused: Option<&SecretString>) -> Result<Access, String> {
        let Some(credential) = self.credential else { return Ok(Access::default()) };
        let mut opened = self.opened.lock().await;
        let is_refused = |access: &Access| {
            refused.zip(access.token.as_ref()).is_some_and(|(refused, token)| is_same(refused, token))
        };
        if let Some(access) = opened.as_ref().filter(|access| !is_refused(access)) {
            return Ok(access.clone());
        }
        let access = self.open(credential, refused).await?;
        if is_refused(&access) {
            return Err("it refused the token of its credential".to_owned());
        }
        *opened = Some(access.clone());
        Ok(access)
    }
}
