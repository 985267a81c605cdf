//! Start, stop, pause, resume, wake and reattach to a session.
//!
//! Requests that need the sandbox become operations, executed by the holder of the session's lease. The
//! others are decided directly.

use axum::{extract::State, http::StatusCode, response::Response};
use serde_json::json;

use super::execs::{MaxWait, check_queued, failed};
use crate::{
    domain::{
        OperationId, OrgId, SessionId,
        decide::{Command, Stamp},
        operation::{Answer as Outcome, Request},
    },
    http::{
        App,
        auth::{Caller, WriteSessions},
        body::{Body, Nothing, OptionalBody},
        error::ApiError,
        idempotency::{Answer, IdempotentRequest, json as respond},
        openapi::Errors,
        path::{self, Path},
    },
    journal::Unit,
    stream::view,
    wire::{
        control::{Reattach, Reattached, StopSession},
        session::SessionView,
    },
};

/// Start the session's sandbox
///
/// Creates, thaws or restores the sandbox; a stopped session continues. Responds when the sandbox runs,
/// or with 202 after 20 seconds.
#[utoipa::path(post, path = "/sessions/{session_id}/start", tag = "sandbox", operation_id = "startSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the sandbox, 0 to 20.")),
    responses((status = 200, body = SessionView), (status = 202, body = SessionView), Errors))]
pub async fn start(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    max_wait: MaxWait,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let id: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let submitted = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        // Lock order: session before sandbox, as everywhere.
        unit.tx().lock_session(id).await?;
        let has_sandbox = unit.tx().has_sandbox(id).await?;
        unit.execute(id, Command::Start { has_sandbox }, &stamp).await?;
        operate(unit, id, &Request::Start, &stamp).await
    });
    completed_session(&app, caller.org, id, submitted.await?, max_wait).await
}

/// Stop a session
///
/// Cancels running and queued work, ends commands, checkpoints the files and removes the sandbox. The
/// next message or start continues the session.
#[utoipa::path(post, path = "/sessions/{session_id}/stop", tag = "sandbox", operation_id = "stopSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the stop, 0 to 20.")), request_body = StopSession,
    responses((status = 200, body = SessionView), (status = 202, body = SessionView), Errors))]
pub async fn stop(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    max_wait: MaxWait,
    OptionalBody(Body { value: wanted, digest }): OptionalBody<StopSession>,
) -> Result<Answer, ApiError> {
    let id: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let submitted = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let reason = wanted.reason.clone();
        let executed = unit.execute(id, Command::Stop { reason }, &stamp).await?;
        // The current absence of a sandbox is not conclusive: a turn that is ending may still create one.
        if executed.events.is_empty() && !unit.tx().has_sandbox(id).await? {
            return Ok(Answer::new(StatusCode::OK, &json!({})));
        }
        operate(unit, id, &Request::Stop, &stamp).await
    });
    completed_session(&app, caller.org, id, submitted.await?, max_wait).await
}

/// Pause a session
///
/// Messages are queued, a running turn waits at its next step, and commands are rejected. The sandbox
/// remains, and its expiry is suspended.
#[utoipa::path(post, path = "/sessions/{session_id}/pause", tag = "sandbox", operation_id = "pauseSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn pause(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    command(&app, &caller, &session, once, digest, Command::Pause).await
}

/// Resume a paused session
#[utoipa::path(post, path = "/sessions/{session_id}/resume", tag = "sandbox", operation_id = "resumeSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn resume(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    command(&app, &caller, &session, once, digest, Command::Resume).await
}

/// Wake a session
///
/// Queued work runs now, including a turn that waits for its next retry. Without queued work, nothing
/// happens.
#[utoipa::path(post, path = "/sessions/{session_id}/wake", tag = "sandbox", operation_id = "wakeSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub async fn wake(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let id = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let executed = unit.wake_up(id, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}

/// Find the newest session of a client
///
/// Returns the newest session with this `client_id` that is not archived.
#[utoipa::path(post, path = "/sessions/reattach", tag = "sandbox", operation_id = "reattachSession",
    request_body = Reattach, responses((status = 200, body = Reattached), Errors))]
pub async fn reattach(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Body { value: wanted, .. }: Body<Reattach>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    let session = match tx.session_of_client(&wanted.client_id).await? {
        Some(session) => Some(view(&mut tx, session).await?),
        None => None,
    };
    Ok(respond(&Reattached { reattached: session.is_some(), session }))
}

async fn command(
    app: &App,
    caller: &Caller<WriteSessions>,
    session: &str,
    once: IdempotentRequest,
    digest: [u8; 32],
    command: Command,
) -> Result<Answer, ApiError> {
    let id = path::id(session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(app, caller.org, digest, async |unit: &mut Unit| {
        let executed = unit.execute(id, command.clone(), &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), executed.session).await?))
    })
    .await
}

/// Submits an operation. The stored response contains its id.
pub async fn operate(
    unit: &mut Unit,
    session: SessionId,
    request: &Request,
    stamp: &Stamp,
) -> Result<Answer, ApiError> {
    let operation: OperationId = stamp.origin.id();
    check_queued(unit.operate(session, operation, request, stamp).await?)?;
    Ok(Answer::new(StatusCode::OK, &json!({ "id": operation })))
}

/// Waits for the outcome of a submitted operation, also if an identical earlier request submitted it.
/// Returns `None` if it has not completed in time, or if nothing was submitted.
pub async fn outcome(
    app: &App,
    org: OrgId,
    session: SessionId,
    submitted: &Answer,
    max_wait: MaxWait,
) -> Result<Option<Outcome>, ApiError> {
    let Some(id) = submitted.body["id"].as_str().and_then(|id| id.parse().ok()) else { return Ok(None) };
    match app.0.journal.answered(org, session, id, max_wait.0).await?.answer {
        Some(Outcome::Failed { code, message }) => Err(failed(code, message)),
        answer => Ok(answer),
    }
}

/// Returns the session after the operation has completed, or after the caller's wait time.
async fn completed_session(
    app: &App,
    org: OrgId,
    session: SessionId,
    submitted: Answer,
    max_wait: MaxWait,
) -> Result<Answer, ApiError> {
    let is_asked = submitted.body.get("id").is_some();
    let outcome = outcome(app, org, session, &submitted, max_wait).await?;
    let status = if is_asked && outcome.is_none() { StatusCode::ACCEPTED } else { StatusCode::OK };
    let mut tx = app.0.store.begin(org).await?;
    let session = tx.session(session).await?;
    Ok(Answer { replayed: submitted.replayed, ..Answer::new(status, &view(&mut tx, session).await?) })
}
