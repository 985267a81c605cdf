//! Sessions: create, list, read, change, steer, cancel, keep, archive.

pub mod archives;
pub mod checkpoints;
pub mod context;
pub mod control;
pub mod create;
pub mod execs;
pub mod export;
pub mod files;
pub mod list;
pub mod steer;

use axum::{extract::State, http::StatusCode, response::Response};

use super::{
    App,
    auth::{Caller, ReadSessions, WriteSessions},
    body::{Body, Nothing, OptionalBody},
    error::ApiError,
    idempotency::{Answer, IdempotentRequest, json},
    openapi::Errors,
    path::{self, Path},
};
use crate::{
    domain::{
        SessionId, Status,
        decide::{Change, Command},
    },
    journal::Unit,
    stream::view,
    wire::session::{ModelUsage, PatchSession, SessionUsage, SessionView},
};

/// Get a session, by its id or its slug.
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "sessions", operation_id = "getSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn get(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    let session = match path::id(&session) {
        Ok(id) => tx.session(id).await?,
        Err(_) => tx.session_by_slug(&session).await?.ok_or_else(ApiError::not_found)?,
    };
    let id = session.id;
    let mut view = view(&mut tx, session).await?;
    if view.status == Status::Queued {
        view.queue_position = tx.queue_position(id).await?;
    }
    Ok(json(&view))
}

/// Get what a session used, in all and of each model.
#[utoipa::path(get, path = "/sessions/{session_id}/usage", tag = "sessions", operation_id = "getSessionUsage",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionUsage), Errors))]
pub async fn usage(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let id = path::id(&session)?;
    let mut tx = app.0.store.begin(caller.org).await?;
    let usage = tx.session(id).await?.usage;
    let models = tx.usage_by_model(id).await?.into_iter();
    let models = models.map(|(model, usage)| ModelUsage { model, usage }).collect();
    Ok(json(&SessionUsage { usage, models }))
}

/// Change title, slug, metadata or limits. Limits may be raised while a turn runs.
#[utoipa::path(patch, path = "/sessions/{session_id}", tag = "sessions", operation_id = "updateSession",
    params(("session_id" = SessionId, Path)), request_body = PatchSession,
    responses((status = 200, body = SessionView), Errors))]
pub async fn patch(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    Body { value: change, .. }: Body<PatchSession>,
) -> Result<Response, ApiError> {
    let id: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let mut unit = app.0.journal.begin(caller.org).await?;
    let limits = match change.limits {
        // Locked, so that two changes of different limits both last.
        Some(limits) => Some(limits.over(unit.tx().lock_session(id).await?.created.limits)),
        None => None,
    };
    let PatchSession { title, slug, metadata, .. } = change;
    let command = Command::Patch(Change { title, slug, metadata, limits });
    let executed = unit.execute(id, command, &stamp).await?;
    let view = view(unit.tx(), executed.session).await?;
    unit.commit().await?;
    Ok(json(&view))
}

/// Ask the running turn to end, and end the queued one. Without either, nothing happens.
#[utoipa::path(post, path = "/sessions/{session_id}/cancel", tag = "sessions", operation_id = "cancelSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn cancel(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let id = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let executed = unit.execute(id, Command::Cancel, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}

/// Keep the session's sandbox as it is: it is not frozen or removed for want of use
/// before its time has passed anew. Without a sandbox, nothing happens.
#[utoipa::path(post, path = "/sessions/{session_id}/heartbeat", tag = "sessions", operation_id = "heartbeatSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn heartbeat(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let id = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        // Session before sandbox, like everyone who changes both.
        unit.tx().lock_session(id).await?;
        let heartbeat = unit.tx().heartbeat(id).await?;
        let sandbox = heartbeat.filter(|heartbeat| heartbeat.is_due).map(|heartbeat| heartbeat.sandbox);
        let executed = unit.execute(id, Command::Heartbeat { sandbox }, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}

/// Close a session for good: whatever runs ends now, the log stays readable.
#[utoipa::path(post, path = "/sessions/{session_id}/archive", tag = "sessions", operation_id = "archiveSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn archive(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let id = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let executed = unit.archive(id, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}
