//! Start, stop, pause, resume, wake: a caller's hand on a session and its sandbox.
//!
//! What needs the sandbox is an operation of the session, served by the holder of its
//! lease; the rest is decided where it is asked.

use axum::{extract::State, http::StatusCode, response::Response};
use serde_json::json;

use super::execs::{Patience, ask, failed};
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

/// Have the session's sandbox there: made, or woken where it rests. A session that was
/// stopped goes on. Answers when it is there, or after 20 seconds with 202.
#[utoipa::path(post, path = "/sessions/{session_id}/start", tag = "sandbox", operation_id = "startSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the sandbox, 0 to 20.")),
    responses((status = 200, body = SessionView), (status = 202, body = SessionView), Errors))]
pub async fn start(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    patience: Patience,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let id: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let asked = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        // Session before sandbox, like everyone who looks at both.
        unit.tx().lock_session(id).await?;
        let has_sandbox = unit.tx().has_sandbox(id).await?;
        unit.execute(id, Command::Start { has_sandbox }, &stamp).await?;
        operate(unit, id, &Request::Start, &stamp).await
    });
    over(&app, caller.org, id, asked.await?, patience).await
}

/// Be done with a session until further notice: what runs and waits is canceled, commands
/// are ended, files are saved and the sandbox is removed. The next message or start goes on.
#[utoipa::path(post, path = "/sessions/{session_id}/stop", tag = "sandbox", operation_id = "stopSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the end, 0 to 20.")), request_body = StopSession,
    responses((status = 200, body = SessionView), (status = 202, body = SessionView), Errors))]
pub async fn stop(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    patience: Patience,
    OptionalBody(Body { value: wanted, digest }): OptionalBody<StopSession>,
) -> Result<Answer, ApiError> {
    let id: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let asked = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let reason = wanted.reason.clone();
        let executed = unit.execute(id, Command::Stop { reason }, &stamp).await?;
        // Whether a sandbox is there now says nothing: a turn that ends may make one.
        if executed.events.is_empty() && !unit.tx().has_sandbox(id).await? {
            return Ok(Answer::new(StatusCode::OK, &json!({})));
        }
        operate(unit, id, &Request::Stop, &stamp).await
    });
    over(&app, caller.org, id, asked.await?, patience).await
}

/// Let nothing begin: messages wait, a turn stands still at its next step, and commands are
/// refused. The sandbox stays, and its time to live stands still.
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

/// Go on with a session that was paused, where it stood.
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

/// Have what waits in the session looked at now, a turn that waits for its next try too.
/// With nothing waiting, nothing happens.
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

/// Find the newest session that a client made and that is not archived.
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

/// Asks for something; the answer that is kept names it.
pub(super) async fn operate(
    unit: &mut Unit,
    session: SessionId,
    request: &Request,
    stamp: &Stamp,
) -> Result<Answer, ApiError> {
    let operation: OperationId = stamp.origin.id();
    ask(unit.operate(session, operation, request, stamp).await?)?;
    Ok(Answer::new(StatusCode::OK, &json!({ "id": operation })))
}

/// What came of an operation that was asked for, now or by an equal request before; `None`
/// while it goes on, or where nothing was to be done.
pub(super) async fn outcome(
    app: &App,
    org: OrgId,
    session: SessionId,
    asked: &Answer,
    patience: Patience,
) -> Result<Option<Outcome>, ApiError> {
    let Some(id) = asked.body["id"].as_str().and_then(|id| id.parse().ok()) else { return Ok(None) };
    match app.0.journal.answered(org, session, id, patience.0).await?.answer {
        Some(Outcome::Failed { code, message }) => Err(failed(code, message)),
        answer => Ok(answer),
    }
}

/// The session once what was asked is so, or when the caller's patience is at its end.
async fn over(
    app: &App,
    org: OrgId,
    session: SessionId,
    asked: Answer,
    patience: Patience,
) -> Result<Answer, ApiError> {
    let is_asked = asked.body.get("id").is_some();
    let outcome = outcome(app, org, session, &asked, patience).await?;
    let status = if is_asked && outcome.is_none() { StatusCode::ACCEPTED } else { StatusCode::OK };
    let mut tx = app.0.store.begin(org).await?;
    let session = tx.session(session).await?;
    Ok(Answer { replayed: asked.replayed, ..Answer::new(status, &view(&mut tx, session).await?) })
}
