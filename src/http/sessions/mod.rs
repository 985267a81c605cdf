//! Handlers of sessions, their sandbox and files.

pub mod archives;
pub mod checkpoints;
pub mod context;
pub mod control;
pub mod create;
pub mod events;
pub mod execs;
pub mod export;
pub mod files;
pub mod list;
pub mod socket;
pub mod sources;
pub mod steer;
pub mod tokens;
pub mod turns;

use axum::{extract::State, http::StatusCode, response::Response};

use super::{
    App,
    auth::{Caller, ReadSessions, WriteSessions},
    body::{Body, Nothing, OptionalBody},
    error::ApiError,
    idempotency::{Answer, IdempotentRequest, json},
    openapi::Errors,
    path::{self, Path, SessionToArchive},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    domain::{
        SessionId, Status,
        decide::{Change, Command},
    },
    journal::Unit,
    stream::view,
    wire::session::{ModelUsage, PatchSession, SessionUsage, SessionView},
};

/// Routes of sessions.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create::create, list::list))
        .routes(routes!(get, patch, export::delete))
        .routes(routes!(export::export))
        .routes(routes!(export::import))
        .routes(routes!(usage))
        .routes(routes!(sources::list))
        .routes(routes!(steer::steer, events::messages))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(socket::connect))
        .routes(routes!(events::get))
        .routes(routes!(events::content))
        .routes(routes!(turns::result))
        .routes(routes!(turns::list))
        .routes(routes!(turns::get))
        .routes(routes!(turns::steps))
        .routes(routes!(cancel))
        .routes(routes!(heartbeat))
        .routes(routes!(archive))
        .routes(routes!(tokens::mint))
        .merge(sandbox_routes())
}

/// Routes of a session's sandbox.
fn sandbox_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(checkpoints::create, checkpoints::list))
        .routes(routes!(checkpoints::restore))
        .routes(routes!(control::start))
        .routes(routes!(control::stop))
        .routes(routes!(control::pause))
        .routes(routes!(control::resume))
        .routes(routes!(control::wake))
        .routes(routes!(control::reattach))
        .routes(routes!(context::get, context::patch))
        .routes(routes!(context::register, context::tools))
        .routes(routes!(execs::create))
        .routes(routes!(execs::get))
        .routes(routes!(execs::kill))
        .routes(routes!(files::read, files::write))
        .routes(routes!(files::list))
        .routes(routes!(archives::read, archives::write))
}

/// Get a session
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "sessions", operation_id = "getSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn get(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    let session = tx.session(path::id(&session)?).await?;
    let id = session.id;
    let mut view = view(&mut tx, session).await?;
    if view.status == Status::Queued {
        view.queue_position = tx.queue_position(id).await?;
    }
    Ok(json(&view))
}

/// Get the usage of a session
///
/// In total and per model.
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

/// Change title, slug, metadata or limits of a session
///
/// Limits can be raised while a turn runs.
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
        // The lock ensures that concurrent changes of different limits are both kept.
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

/// Cancel the running and the queued turn
///
/// The queued turn ends immediately, the running one as soon as possible. Without either, nothing
/// happens.
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

/// Extend the idle time of the session's sandbox
///
/// Restarts the idle timers, so that the sandbox is not frozen or hibernated yet. Without a sandbox,
/// nothing happens.
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
        // Lock order: session before sandbox, as everywhere.
        unit.tx().lock_session(id).await?;
        let heartbeat = unit.tx().heartbeat(id).await?;
        let sandbox = heartbeat.filter(|heartbeat| heartbeat.is_due).map(|heartbeat| heartbeat.sandbox);
        let executed = unit.execute(id, Command::Heartbeat { sandbox }, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}

/// Archive a session
///
/// Running work ends now. An archived session cannot be reopened; its log stays readable. The slug is also
/// accepted after the session was archived, until another session takes it.
#[utoipa::path(post, path = "/sessions/{session_id}/archive", tag = "sessions", operation_id = "archiveSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn archive(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    SessionToArchive(id): SessionToArchive,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let executed = unit.archive(id, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}
