//! Ids in paths, and the names that are accepted in their place.
//!
//! A malformed id is handled like an unknown one.

use std::str::FromStr;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};

use super::{
    App,
    error::{ApiError, Result},
};
use crate::{
    base::{Id, Kind},
    domain::{AgentKind, CredentialKind, EnvironmentKind, OrgId, SessionId, SessionKind},
    store::{self, Tx},
};

/// The ids in a path. A malformed id, or a segment that cannot be decoded, is 404 and not 400, so that the
/// response does not depend on whether an id is well formed.
///
/// A name of an agent, environment or credential and a slug of a session are replaced by the id. This requires that an
/// extractor before this one has authenticated the caller.
pub(super) struct Path<T>(pub T);

/// Organization of the authenticated caller, for the extractors that run later.
#[derive(Clone, Copy)]
pub(super) struct CallerOrg(pub OrgId);

/// Path segments of a handler, in order.
pub(super) trait Segments: Sized {
    fn of(segments: Vec<String>) -> Option<Self>;
}

impl<K: Kind> Segments for Id<K> {
    fn of(segments: Vec<String>) -> Option<Self> {
        let [only]: [String; 1] = segments.try_into().ok()?;
        only.parse().ok()
    }
}

impl<A: FromStr, B: FromStr> Segments for (A, B) {
    fn of(segments: Vec<String>) -> Option<Self> {
        let [first, second]: [String; 2] = segments.try_into().ok()?;
        Some((first.parse().ok()?, second.parse().ok()?))
    }
}

impl<T: Segments> FromRequestParts<App> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let org = parts.extensions.get::<CallerOrg>().copied();
        let params =
            RawPathParams::from_request_parts(parts, app).await.map_err(|_| ApiError::not_found())?;
        let mut segments = Vec::new();
        for (param, segment) in &params {
            segments.push(match (param, org) {
                ("agent_id", Some(CallerOrg(org))) => {
                    resolve::<AgentKind>(app, org, segment).await?.to_string()
                }
                ("session_id", Some(CallerOrg(org))) => {
                    resolve::<SessionKind>(app, org, segment).await?.to_string()
                }
                ("environment_id", Some(CallerOrg(org))) => {
                    resolve::<EnvironmentKind>(app, org, segment).await?.to_string()
                }
                ("credential_id", Some(CallerOrg(org))) => {
                    resolve::<CredentialKind>(app, org, segment).await?.to_string()
                }
                _ => segment.to_owned(),
            });
        }
        T::of(segments).map(Self).ok_or_else(ApiError::not_found)
    }
}

/// The session to archive.
///
/// Unlike [`Path`], accepts the slug of an archived session while no open one has it, so that a repeated
/// request gets the same response.
pub(super) struct SessionToArchive(pub SessionId);

impl FromRequestParts<App> for SessionToArchive {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let axum::extract::Path(text) = axum::extract::Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| ApiError::not_found())?;
        if let Ok(id) = text.parse() {
            return Ok(Self(id));
        }
        let CallerOrg(org) = parts.extensions.get().copied().ok_or_else(ApiError::not_found)?;
        let mut tx = app.0.store.begin(org).await?;
        let found = match resolve_in(&mut tx, &text).await? {
            Some(open) => Some(open),
            None => tx.archived_session_by_slug(&text).await?,
        };
        found.map(Self).ok_or_else(ApiError::not_found)
    }
}

/// Parses an id outside of the path. A malformed one is 404, as in the path.
pub(super) fn id<K: Kind>(segment: &str) -> Result<Id<K>> {
    Id::from_str(segment).map_err(|_| ApiError::not_found())
}

/// A kind of resource that can be named in place of its id.
pub(super) trait Named: Kind + Sized {
    /// Returns the id of the resource with this name in the transaction's organization.
    async fn find(tx: &mut Tx, name: &str) -> store::Result<Option<Id<Self>>>;
}

impl Named for AgentKind {
    async fn find(tx: &mut Tx, name: &str) -> store::Result<Option<Id<Self>>> {
        Ok(tx.agent_by_name(name).await?.map(|agent| agent.id))
    }
}

impl Named for EnvironmentKind {
    async fn find(tx: &mut Tx, name: &str) -> store::Result<Option<Id<Self>>> {
        Ok(tx.environment_by_name(name).await?.map(|named| named.id))
    }
}

impl Named for SessionKind {
    /// Finds the session that is not archived and has this slug.
    async fn find(tx: &mut Tx, name: &str) -> store::Result<Option<Id<Self>>> {
        Ok(tx.session_by_slug(name).await?.map(|session| session.id))
    }
}

impl Named for CredentialKind {
    /// Finds the only credential with this name.
    async fn find(tx: &mut Tx, name: &str) -> store::Result<Option<Id<Self>>> {
        Ok(tx.credential_by_name(name).await?.map(|credential| credential.id))
    }
}

/// Returns the id of a resource from its id or name. A well-formed id is not looked up.
///
/// # Errors
/// 404 if no resource of the organization has this name.
pub(super) async fn resolve<K: Named>(app: &App, org: OrgId, text: &str) -> Result<Id<K>> {
    match Id::from_str(text) {
        Ok(id) => Ok(id),
        Err(_) => {
            let mut tx = app.0.store.begin(org).await?;
            resolve_in(&mut tx, text).await?.ok_or_else(ApiError::not_found)
        }
    }
}

/// Resolves an id or name within a transaction. A well-formed id is not looked up.
pub(super) async fn resolve_in<K: Named>(tx: &mut Tx, text: &str) -> store::Result<Option<Id<K>>> {
    match Id::from_str(text) {
        Ok(id) => Ok(Some(id)),
        // No name contains U+0000, which a text parameter cannot carry.
        Err(_) if text.contains('\0') => Ok(None),
        Err(_) => K::find(tx, text).await,
    }
}

/// Resolves a filter that may be absent.
pub(super) async fn resolve_optional<K: Named>(
    app: &App,
    org: OrgId,
    text: Option<&str>,
) -> Result<Option<Id<K>>> {
    match text {
        Some(text) => resolve(app, org, text).await.map(Some),
        None => Ok(None),
    }
}
