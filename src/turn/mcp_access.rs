//! Access to an MCP server: a stored credential, opened when a connection first needs it. The access
//! token of an OAuth client is refreshed by one process; the others read it again.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};
use url::Url;

use crate::{
    base::{
        ExposeSecret, Origin, SecretString,
        limit::{MCP_ACCESS_TTL, OAUTH_POLL, OAUTH_REFRESH_LEASE, OAUTH_STORE_RETRY, OAUTH_WAIT},
    },
    domain::{CredentialId, Notice, OrgId},
    mcp::{Access, AccessSource, Clients, NoToken},
    net,
    store::{
        self, Store,
        credential::OpenCredential,
        oauth::{OAuthToken, RefreshLease},
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
    opened: Mutex<Option<(Instant, Access)>>,
    /// Whether a token was refreshed because the server refused it: a server that refuses each one causes one refresh.
    has_refreshed: AtomicBool,
}

impl StoredAccess {
    pub(super) fn new(
        clients: Clients,
        (store, origin): (Store, Origin),
        org: OrgId,
        credential: Option<CredentialId>,
        url: &Url,
    ) -> Self {
        Self {
            clients,
            store,
            origin,
            org,
            credential,
            url: url.clone(),
            opened: Mutex::default(),
            has_refreshed: AtomicBool::default(),
        }
    }

    async fn open(&self, credential: CredentialId, refused: Option<&SecretString>) -> Result<Access, String> {
        let open = self.store.open_credential(self.org, credential).await.map_err(unreadable)?;
        let OpenCredential { base_url, key, key_header, headers, has_oauth, .. } = open;
        // The address of the server may have been changed since the credential was checked.
        let base = base_url.and_then(|base| net::parse(&base).ok());
        if base.is_none_or(|base| base.origin() != self.url.origin()) {
            return Err("its credential is for another origin".to_owned());
        }
        let token = if has_oauth { self.access_token(credential, refused).await? } else { key };
        Ok(Access { token: Some(token), key_header, headers })
    }

    /// Returns the access token of an OAuth client, another one than that which was `refused`.
    async fn access_token(
        &self,
        credential: CredentialId,
        refused: Option<&SecretString>,
    ) -> Result<SecretString, String> {
        let until = Instant::now() + OAUTH_WAIT;
        let mut first = None;
        loop {
            let token = self.store.oauth_token(self.org, credential).await.map_err(unreadable)?;
            if token.is_refused {
                return Err(
                    "its credential needs a new authorization: the token endpoint refused it".to_owned()
                );
            }
            // A new token is used, however soon it ends.
            let is_new = token.generation > *first.get_or_insert(token.generation);
            let is_refused = refused.is_some_and(|refused| is_same(refused, &token.access));
            if is_refused {
                if is_new || self.has_refreshed.load(Ordering::Relaxed) {
                    return Err("the server refuses each access token of its credential".to_owned());
                }
            } else if token.is_valid || is_new {
                return Ok(token.access);
            }
            let begun = self.store.begin_refresh(self.org, credential, token.generation).await;
            match begun.map_err(unreadable)? {
                // A turn that ends must not take with it what the token endpoint gives only once.
                Some(lease) => {
                    self.has_refreshed.fetch_or(is_refused, Ordering::Relaxed);
                    let refresh = Refresh {
                        clients: self.clients.clone(),
                        store: self.store.clone(),
                        origin: self.origin.clone(),
                        org: self.org,
                        credential,
                    };
                    let refreshed = self.clients.run_to_end(refresh.run(token, lease));
                    match timeout_at(until, refreshed).await {
                        Ok(Ok(refreshed)) => refreshed?,
                        Ok(Err(_)) => return Err("its access token could not be refreshed".to_owned()),
                        Err(_) => return Err(REFRESHING.to_owned()),
                    }
                }
                // Another process refreshes it.
                None if Instant::now() < until => sleep(OAUTH_POLL).await,
                None => return Err(REFRESHING.to_owned()),
            }
        }
    }
}

/// The refresh of one access token.
struct Refresh {
    clients: Clients,
    store: Store,
    origin: Origin,
    org: OrgId,
    credential: CredentialId,
}

impl Refresh {
    async fn run(self, before: OAuthToken, lease: RefreshLease) -> Result<(), String> {
        let Self { clients, store, origin, org, credential } = self;
        let answer = clients.token(org, &before.client, &before.secrets).await;
        let outcome = match &answer {
            Ok(_) => "refreshed",
            Err(NoToken::Refused(_)) => "refused",
            Err(NoToken::Unavailable(_)) => "unavailable",
        };
        metrics::counter!("sojourn_credential_refreshes_total", "outcome" => outcome).increment(1);
        match answer {
            Ok(new) => {
                let until = Instant::now() + OAUTH_REFRESH_LEASE;
                loop {
                    match store.store_token(org, credential, (&before, &new), &origin).await {
                        Err(error) if Instant::now() < until => {
                            tracing::warn!(%error, "an access token is not stored yet");
                            sleep(OAUTH_STORE_RETRY).await;
                        }
                        stored => return stored.map_err(unreadable),
                    }
                }
            }
            Err(NoToken::Refused(reason)) => {
                let notice = Notice::credential_refused(credential, &reason, &origin);
                store.end_refresh(org, credential, lease, Some(&notice)).await.map_err(unreadable)
            }
            Err(reason @ NoToken::Unavailable(_)) => {
                store.end_refresh(org, credential, lease, None).await.map_err(unreadable)?;
                Err(reason.to_string())
            }
        }
    }
}

/// Told of a request for which there is no access token yet.
const REFRESHING: &str = "its access token is being refreshed";

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
        if let Some((at, access)) = opened.as_ref()
            && at.elapsed() < MCP_ACCESS_TTL
            && !is_refused(access)
        {
            return Ok(access.clone());
        }
        let access = self.open(credential, refused).await?;
        if is_refused(&access) {
            return Err("it refused the token of its credential".to_owned());
        }
        *opened = Some((Instant::now(), access.clone()));
        Ok(access)
    }
}
