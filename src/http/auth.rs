//! Extractors that authenticate a caller and check its scope.
//!
//! Obtaining an extractor *is* the permission.

use std::{collections::HashMap, marker::PhantomData, time::Duration};

use axum::{
    extract::{FromRequestParts, Path},
    http::{HeaderMap, request::Parts},
};
use serde::Deserialize;
use subtle::ConstantTimeEq;

use super::{
    App,
    error::{ApiError, Result},
    idempotency::Sender,
    page::List,
    path::{self, CallerOrg},
    rate::{AllowanceSlot, RateKey},
    scope::Scope,
    unauthenticated::Peer,
};
use crate::{
    base::{ExposeSecret, Origin, SecretString, key, limit, seal::sha256},
    domain::{Actor, ActorKind, Level, OrgId, SessionId, decide::Stamp, session::Source},
    journal::{self, Unit},
    store::{Result as StoreResult, Tx, audit::Act, key::LiveKey, token::LiveToken},
    wire::ErrorType,
};

/// A caller with an API key that has the scope.
pub(super) struct Caller<S: Scope> {
    pub app: App,
    pub org: OrgId,
    pub actor: Actor,
    pub source: Source,
    /// All scopes of the key.
    pub scopes: Vec<String>,
    /// The secret that the caller authenticated with.
    pub proof: Proof,
    scope: PhantomData<fn() -> S>,
}

/// A caller of one session, with an API key or with that session's client token.
pub(super) struct SessionCaller<S: Scope> {
    pub app: App,
    pub org: OrgId,
    pub session: SessionId,
    pub actor: Actor,
    /// Highest event level that the caller may read.
    pub level: Level,
    /// All scopes of the key or the client token.
    scopes: Vec<String>,
    /// The secret that the caller authenticated with.
    pub proof: Proof,
    scope: PhantomData<fn() -> S>,
}

/// A secret that was valid when the request began.
pub(super) struct Proof(SecretString);

impl<S: Scope> Caller<S> {
    /// Returns the service's source of time and ids.
    pub(super) fn origin(&self) -> &Origin {
        self.app.0.journal.origin()
    }

    /// Returns the author and origin to record with a command.
    pub(super) fn stamp(&self) -> Stamp {
        Stamp { actor: self.actor.clone(), origin: self.origin().clone() }
    }

    /// Begins a transaction in the caller's organization.
    pub(super) async fn begin(&self) -> StoreResult<Tx> {
        self.app.0.store.begin(self.org).await
    }

    /// Begins a unit of work in the caller's organization.
    pub(super) async fn unit(&self) -> Result<Unit, journal::Error> {
        self.app.0.journal.begin(self.org).await
    }

    /// Identifies a list of the caller's organization by its name and all its filters.
    pub(super) fn list(&self, name: &str, filters: &impl std::fmt::Debug) -> List<'_> {
        List::new(&self.app, self.org, name, filters)
    }

    /// Adds an action by this caller to the audit log.
    pub(super) async fn record_audit(
        &self,
        tx: &mut Tx,
        action: &'static str,
        target: impl ToString,
        details: serde_json::Value,
    ) -> StoreResult<()> {
        let (id, target) = (self.origin().id(), Some(target.to_string()));
        tx.record_audit(&Act { id, actor: &self.actor, action, target, details }).await
    }
}

impl<S: Scope> SessionCaller<S> {
    /// Checks the scope of another kind of request that this one contains.
    pub(super) fn check<T: Scope>(&self) -> Result<()> {
        match self.proof.is_token() {
            true if T::is_in_token(&self.scopes) => Ok(()),
            true => Err(missing_scope(T::TOKEN.unwrap_or(T::NAME))),
            false if T::is_in(&self.scopes) => Ok(()),
            false => Err(missing_scope(T::NAME)),
        }
    }

    /// Returns the author and origin to record with a command.
    pub(super) fn stamp(&self) -> Stamp {
        Stamp { actor: self.actor.clone(), origin: self.app.0.journal.origin().clone() }
    }

    /// Returns the scope of the keys of the caller's messages. All client tokens of the session have one, so that a page
    /// can repeat a message with its next token. It is not that of API keys: a page must not use up a key that a server is
    /// going to send.
    pub(super) fn message_keys(&self) -> String {
        let of_tokens = if self.proof.is_token() { "/token" } else { "" };
        format!("steer/{}{of_tokens}", self.session)
    }

    /// Begins a transaction in the session's organization.
    pub(super) async fn begin(&self) -> StoreResult<Tx> {
        self.app.0.store.begin(self.org).await
    }

    /// Identifies a list of the organization by its name and all its filters.
    pub(super) fn list(&self, name: &str, filters: &impl std::fmt::Debug) -> List<'_> {
        List::new(&self.app, self.org, name, filters)
    }
}

impl<S: Scope> FromRequestParts<App> for Caller<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let secret = bearer(&parts.headers).ok_or_else(no_key)?;
        let key = app.open_key(&secret, peer(parts)).await?;
        app.take_request(RateKey::Key(key.key), key.org, parts)?;
        if !S::is_in(&key.scopes) {
            return Err(missing_scope(S::NAME));
        }
        parts.extensions.insert(CallerOrg(key.org));
        parts.extensions.insert(sender(&key));
        Ok(Self {
            app: app.clone(),
            org: key.org,
            actor: key_actor(&key),
            source: source_of(&key, &parts.headers),
            scopes: key.scopes,
            proof: Proof(secret.into()),
            scope: PhantomData,
        })
    }
}

impl<S: Scope> FromRequestParts<App> for SessionCaller<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let Path(segments): Path<HashMap<String, String>> =
            Path::from_request_parts(parts, app).await.map_err(|_| ApiError::not_found())?;
        let wanted = segments.get("session_id").map(String::as_str).unwrap_or_default();
        let in_query = query_token(parts.uri.query());
        let secret = match bearer(&parts.headers) {
            Some(secret) => secret,
            // Only client tokens are accepted in a URL, never an organization's key.
            None => {
                in_query.filter(|token| token.starts_with(key::CLIENT_TOKEN_PREFIX)).ok_or_else(no_key)?
            }
        };
        if !secret.starts_with(key::CLIENT_TOKEN_PREFIX) {
            let key = app.open_key(&secret, peer(parts)).await?;
            app.take_request(RateKey::Key(key.key), key.org, parts)?;
            if !S::is_in(&key.scopes) {
                return Err(missing_scope(S::NAME));
            }
            let session = path::resolve(app, key.org, wanted).await?;
            parts.extensions.insert(CallerOrg(key.org));
            parts.extensions.insert(sender(&key));
            return Ok(Self {
                app: app.clone(),
                org: key.org,
                session,
                actor: key_actor(&key),
                level: Level::Internal,
                scopes: key.scopes,
                proof: Proof(secret.into()),
                scope: PhantomData,
            });
        }
        let token = app.find_secret(&secret, peer(parts), app.0.store.find_token(&secret)).await?;
        let token = token.ok_or_else(wrong_key)?;
        app.take_request(RateKey::Tokens(token.session), token.org, parts)?;
        let session: SessionId = path::resolve(app, token.org, wanted).await?;
        let scope = S::TOKEN.filter(|_| token.session == session).ok_or_else(ApiError::not_found)?;
        if !S::is_in_token(&token.scopes) {
            return Err(missing_scope(scope));
        }
        parts.extensions.insert(CallerOrg(token.org));
        parts.extensions.insert(Sender::token(&secret));
        Ok(Self {
            app: app.clone(),
            org: token.org,
            session,
            actor: token_actor(&token),
            level: token.level,
            scopes: token.scopes,
            proof: Proof(secret.into()),
            scope: PhantomData,
        })
    }
}

/// The operator of the deployment. No organization's key is accepted.
pub(super) struct Operator {
    pub app: App,
    proof: PhantomData<()>,
}

impl FromRequestParts<App> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let secret = bearer(&parts.headers).ok_or_else(no_key)?;
        let given = sha256(secret.as_bytes());
        let is_held = app.0.operator.is_some_and(|held| held.ct_eq(&given).into());
        if is_held { Ok(Self { app: app.clone(), proof: PhantomData }) } else { Err(wrong_key()) }
    }
}

impl Proof {
    /// Returns how long the secret is trusted before it is checked again.
    pub(super) fn interval(&self) -> Duration {
        let (of_key, of_token) = limit::STREAM_AUTH_INTERVAL;
        if self.is_token() { of_token } else { of_key }
    }

    fn is_token(&self) -> bool {
        self.0.expose_secret().starts_with(key::CLIENT_TOKEN_PREFIX)
    }

    /// Checks whether the secret is still valid. Returns true while the database is unavailable.
    pub(super) async fn holds(&self, app: &App) -> bool {
        let secret = self.0.expose_secret();
        if self.is_token() {
            app.0.store.find_token(secret).await.map_or(true, |found| found.is_some())
        } else {
            app.live_key(secret, None).await.map_or(true, |found| found.is_some_and(|key| !key.is_suspended))
        }
    }
}

impl App {
    /// Returns the key with this secret, if it is valid and its organization is not suspended.
    async fn open_key(&self, secret: &str, peer: Option<Peer>) -> Result<LiveKey> {
        // Not looked up: as an unknown key it would be unknown for a while where it is valid.
        if [key::CLIENT_TOKEN_PREFIX, key::INVOKE_TOKEN_PREFIX]
            .iter()
            .any(|prefix| secret.starts_with(prefix))
        {
            return Err(ApiError::new(
                ErrorType::Unauthorized,
                "send an API key; tokens are not accepted here",
            ));
        }
        let key = self.live_key(secret, peer).await?.ok_or_else(wrong_key)?;
        if key.is_suspended { Err(suspended()) } else { Ok(key) }
    }

    async fn live_key(&self, secret: &str, peer: Option<Peer>) -> Result<Option<LiveKey>> {
        let hash = sha256(secret.as_bytes());
        if let Some(key) = self.0.keys.get(&hash) {
            return Ok(Some(key));
        }
        let found = self.find_secret(secret, peer, self.0.store.find_key(secret)).await?;
        if let Some(key) = &found {
            self.0.keys.put(hash, key.clone());
        }
        Ok(found)
    }

    /// Looks up a secret within the bounds of callers whose secret is unknown.
    pub(super) async fn find_secret<T>(
        &self,
        secret: &str,
        peer: Option<Peer>,
        find: impl Future<Output = StoreResult<Option<T>>>,
    ) -> Result<Option<T>> {
        if key::verify_check(secret) == Some(false) {
            return Ok(None);
        }
        self.0.lookups.find(peer, sha256(secret.as_bytes()), find).await
    }

    /// Takes one request from the rate limits of the caller and of its organization, and records the
    /// remaining allowance of the one with fewer requests left.
    pub(super) fn take_request(&self, who: RateKey, org: OrgId, parts: &Parts) -> Result<()> {
        let is_trigger = matches!(who, RateKey::Trigger(_));
        let rates = if is_trigger { &self.0.trigger_rates } else { &self.0.rates };
        let own = rates.take(who);
        let shared = own.is_ok().then(|| self.0.organization_rates.take(RateKey::Organization(org)));
        let (Ok(mut left) | Err((mut left, _))) = own;
        if let Some(Ok(of_all) | Err((of_all, _))) = shared
            && of_all.remaining < left.remaining
        {
            left = of_all;
        }
        if let Some(told) = parts.extensions.get::<AllowanceSlot>() {
            // Set only once, because a request has one caller.
            let _ = told.0.set(left);
        }
        let (who, rates, code, wait) = match (own, shared) {
            (Err((_, wait)), _) => (if is_trigger { "trigger" } else { "key" }, rates, None, wait),
            (_, Some(Err((_, wait)))) => {
                ("organization", &self.0.organization_rates, Some("organization_rate".into()), wait)
            }
            _ => return Ok(()),
        };
        let message = format!("this {who} may make {} requests per second; slow down", rates.per_second());
        Err(ApiError { retry_after: Some(wait), code, ..ApiError::new(ErrorType::RateLimited, message) })
    }
}

/// An API key as the sender of a request.
fn sender(key: &LiveKey) -> Sender {
    Sender::Key(key.key, key.scopes.iter().any(|scope| scope == "*"))
}

/// The peer of a request.
pub(super) fn peer(parts: &Parts) -> Option<Peer> {
    parts.extensions.get().copied()
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let authorization = text("authorization").and_then(|value| {
        let (scheme, secret) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    });
    authorization.or_else(|| text("x-api-key")).filter(|secret| !secret.is_empty()).map(str::to_owned)
}

fn query_token(query: Option<&str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Token {
        token: Option<String>,
    }
    let uri: axum::http::Uri = format!("/?{}", query?).parse().ok()?;
    axum::extract::Query::<Token>::try_from_uri(&uri).ok()?.0.token
}

/// Header in which this project's command line and dashboard name themselves.
pub(super) const CLIENT_HEADER: &str = "x-sojourn-client";

/// Returns the source of sessions that the caller creates. The header only refines `api`; a key with
/// another source and an unknown client leave it unchanged. It grants nothing.
fn source_of(key: &LiveKey, headers: &HeaderMap) -> Source {
    let client = headers.get(CLIENT_HEADER).map(|value| value.as_bytes());
    match (key.source, client) {
        (Source::Api, Some(b"cli")) => Source::Cli,
        (Source::Api, Some(b"dashboard")) => Source::Dashboard,
        (source, _) => source,
    }
}

fn key_actor(key: &LiveKey) -> Actor {
    Actor { id: Some(key.key.to_string()), display: Some(key.name.clone()), kind: ActorKind::Human }
}

fn token_actor(token: &LiveToken) -> Actor {
    Actor { id: Some(format!("client-token/{}", token.session)), display: None, kind: ActorKind::Human }
}

fn no_key() -> ApiError {
    ApiError::new(ErrorType::Unauthorized, "send an API key as `Authorization: Bearer <key>`")
}

pub(super) fn wrong_key() -> ApiError {
    ApiError::new(ErrorType::Unauthorized, "the key is unknown, expired or revoked")
}

pub(super) fn suspended() -> ApiError {
    ApiError {
        code: Some("organization_suspended".into()),
        ..ApiError::new(
            ErrorType::Forbidden,
            "the organization is suspended; ask the operator of this service",
        )
    }
}

pub(super) fn missing_scope(scope: &str) -> ApiError {
    ApiError::new(ErrorType::Forbidden, format!("the key lacks the scope `{scope}`"))
}
