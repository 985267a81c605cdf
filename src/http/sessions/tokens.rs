//! Client tokens: short-lived tokens bound to one session.

use std::time::Duration;

use serde_json::json;

use crate::{
    base::{key, limit::CLIENT_TOKEN_TTL_SECONDS},
    domain::{Level, SessionId, Status},
    http::{
        auth::missing_scope,
        prelude::*,
        scope::{ApproveActions, ReadSessions, Scope, WriteSessions},
    },
    store::{column::word, token::NewToken},
    wire::client_token::{ClientScope, ClientTokenView, MintClientToken},
};

/// Create a client token
///
/// It is revoked when the session is archived.
#[utoipa::path(post, path = "/sessions/{session_id}/client-tokens", tag = "sessions",
    operation_id = "mintClientToken", params(("session_id" = SessionId, Path)),
    request_body = MintClientToken, responses((status = 201, body = ClientTokenView), Errors))]
pub(super) async fn mint(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<MintClientToken>>,
) -> Result<Answer> {
    // A key gives away only what it has.
    let scopes = wanted.scopes.unwrap_or_else(|| vec![ClientScope::Read, ClientScope::Steer]);
    if scopes.contains(&ClientScope::Approve) && !ApproveActions::is_in(&caller.scopes) {
        return Err(missing_scope(ApproveActions::NAME));
    }
    if scopes.contains(&ClientScope::Read) && !ReadSessions::is_in(&caller.scopes) {
        return Err(missing_scope(ReadSessions::NAME));
    }
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        // The lock prevents a token that outlives the session's archiving, which revokes all tokens.
        if unit.tx().lock_session(id).await?.status == Status::Archived {
            return Err(crate::domain::decide::Rejection::Archived.into());
        }
        let (shortest, usual, longest) = CLIENT_TOKEN_TTL_SECONDS;
        let ttl = wanted.ttl.unwrap_or(usual).clamp(shortest, longest);
        let level = wanted.level.unwrap_or(Level::Progress);
        let (new, token) = make(&caller.app, &scopes, ttl, level);
        unit.tx().create_token(id, &new).await?;
        let details = json!({ "scopes": token.scopes, "level": level, "ttl_seconds": ttl });
        caller.record_audit(unit.tx(), "client_token.minted", id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &token))
    })
    .await
}

/// Creates a token with a lifetime of `ttl_seconds`. Returns the row to store and the view for the
/// caller.
pub(super) fn make(
    app: &App,
    scopes: &[ClientScope],
    ttl_seconds: i64,
    level: Level,
) -> (NewToken, ClientTokenView) {
    let origin = app.0.journal.origin();
    let secret = key::generate_client_token(origin);
    let expires_at = origin.now() + Duration::from_secs(ttl_seconds.unsigned_abs());
    let hash = app.0.store.master().fingerprint(&secret).to_vec();
    let new = NewToken { hash, scopes: scopes.iter().map(word).collect(), level, expires_at };
    (
        new,
        ClientTokenView { client_token: secret.clone(), token: secret, scopes: scopes.to_vec(), expires_at },
    )
}
