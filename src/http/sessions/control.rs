//! Start, stop, pause, resume, wake and reattach to a session.
//!
//! Requests that need the sandbox become operations, executed by the holder of the session's lease. The
//! others are decided directly.

use serde_json::json;

use super::{
    change::change,
    operations::{MaxWait, operate, outcome, submitted_by},
};
use crate::{
    domain::{SessionId, decide::Command, operation::Request},
    http::{prelude::*, scope::WriteSessions},
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
pub(super) async fn start(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    max_wait: MaxWait,
    once: IdempotentRequest,
) -> Result<Answer> {
    let stamp = caller.stamp();
    let submitted = once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        // Lock order: session before sandbox, as everywhere.
        unit.tx().lock_session(id).await?;
        let has_sandbox = unit.tx().has_sandbox(id).await?;
        unit.execute(id, Command::Start { has_sandbox }, &stamp).await?;
        operate(unit, id, &Request::Start, &stamp).await
    });
    completed_session(&caller, id, submitted.await?, max_wait).await
}

/// Stop a session
///
/// Cancels running and queued work, ends commands, checkpoints the files and removes the sandbox. The
/// next message or start continues the session.
#[utoipa::path(post, path = "/sessions/{session_id}/stop", tag = "sandbox", operation_id = "stopSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the stop, 0 to 20.")), request_body = StopSession,
    responses((status = 200, body = SessionView), (status = 202, body = SessionView), Errors))]
pub(super) async fn stop(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    max_wait: MaxWait,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<StopSession>>,
) -> Result<Answer> {
    let stamp = caller.stamp();
    let submitted = once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let reason = wanted.reason.clone();
        let below = if wanted.children { unit.tx().lock_descendants(id).await? } else { Vec::new() };
        let executed = unit.execute(id, Command::Stop { reason: reason.clone() }, &stamp).await?;
        for child in below {
            let stopped = unit.execute(child, Command::Stop { reason: reason.clone() }, &stamp).await?;
            if !stopped.events.is_empty() || unit.tx().has_sandbox(child).await? {
                operate(unit, child, &Request::Stop, &stamp).await?;
            }
        }
        // The current absence of a sandbox is not conclusive: a turn that is ending may still create one.
        if executed.events.is_empty() && !unit.tx().has_sandbox(id).await? {
            return Ok(Answer::new(StatusCode::OK, &json!({})));
        }
        operate(unit, id, &Request::Stop, &stamp).await
    });
    completed_session(&caller, id, submitted.await?, max_wait).await
}

/// Pause a session
///
/// Messages are queued, a running turn waits at its next step, and commands are rejected. The sandbox
/// remains, and its expiry is suspended.
#[utoipa::path(post, path = "/sessions/{session_id}/pause", tag = "sandbox", operation_id = "pauseSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub(super) async fn pause(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    change(&caller, &once, async |unit, stamp| Ok(unit.execute(id, Command::Pause, stamp).await?)).await
}

/// Resume a paused session
#[utoipa::path(post, path = "/sessions/{session_id}/resume", tag = "sandbox", operation_id = "resumeSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub(super) async fn resume(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    change(&caller, &once, async |unit, stamp| Ok(unit.execute(id, Command::Resume, stamp).await?)).await
}

/// Wake a session
///
/// Queued work runs now, including a turn that waits for its next retry. Without queued work, nothing
/// happens.
#[utoipa::path(post, path = "/sessions/{session_id}/wake", tag = "sandbox", operation_id = "wakeSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub(super) async fn wake(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    change(&caller, &once, async |unit, stamp| Ok(unit.wake_up(id, stamp).await?)).await
}

/// Find the newest session of a client
///
/// Returns the newest session with this `client_id` that is not archived.
#[utoipa::path(post, path = "/sessions/reattach", tag = "sandbox", operation_id = "reattachSession",
    request_body = Reattach, responses((status = 200, body = Reattached), Errors))]
pub(super) async fn reattach(
    caller: Caller<WriteSessions>,
    Body(wanted): Body<Reattach>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let session = match tx.session_of_client(&wanted.client_id).await? {
        Some(session) => Some(view(&mut tx, session).await?),
        None => None,
    };
    Ok(respond(&Reattached { reattached: session.is_some(), session }))
}

/// Returns the session after the operation has completed, or after the caller's wait time.
async fn completed_session(
    caller: &Caller<WriteSessions>,
    id: SessionId,
    submitted: Answer,
    max_wait: MaxWait,
) -> Result<Answer> {
    let operation = submitted_by(&submitted);
    let outcome = outcome(caller, id, operation, max_wait).await?;
    let is_pending = operation.is_some() && outcome.is_none();
    let status = if is_pending { StatusCode::ACCEPTED } else { StatusCode::OK };
    let mut tx = caller.begin().await?;
    let session = tx.session(id).await?;
    Ok(Answer { replayed: submitted.replayed, ..Answer::new(status, &view(&mut tx, session).await?) })
}
