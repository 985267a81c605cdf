//! Checkpoints of a session: create, list, restore.

use axum::{extract::State, http::StatusCode, response::Response};

use super::{
    control::{operate, outcome},
    execs::MaxWait,
};
use crate::{
    domain::{
        CheckpointId, OrgId, SessionId,
        operation::{Answer as Outcome, Request},
    },
    http::{
        App,
        auth::{Caller, ReadSessions, WriteSessions},
        body::{Body, Nothing, OptionalBody},
        error::ApiError,
        idempotency::{Answer, IdempotentRequest, json},
        openapi::Errors,
        path::{self, Path},
    },
    journal::Unit,
    store::checkpoint::Checkpoint,
    wire::{
        Page,
        sandbox::{CheckpointView, Restore},
    },
};

/// List checkpoints
///
/// Newest first. Few are retained, so the list has one page.
#[utoipa::path(get, path = "/sessions/{session_id}/checkpoints", tag = "sessions", operation_id = "listCheckpoints",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = Page<CheckpointView>), Errors))]
pub async fn list(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let id = path::id(&session)?;
    let mut tx = app.0.store.begin(caller.org).await?;
    tx.session(id).await?;
    let data = tx.checkpoints(id).await?.into_iter().map(view).collect();
    Ok(json(&Page { data, next_cursor: None }))
}

/// Create a checkpoint of the session's files
///
/// The sandbox is frozen while its files are read. If no file changed, the newest checkpoint is returned.
/// The newest 8 that callers created are retained.
#[utoipa::path(post, path = "/sessions/{session_id}/checkpoints", tag = "sandbox", operation_id = "createCheckpoint",
    params(("session_id" = SessionId, Path)), responses((status = 201, body = CheckpointView), Errors))]
pub async fn create(
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
        operate(unit, id, &Request::Checkpoint, &stamp).await
    });
    let submitted = submitted.await?;
    let status = if submitted.replayed { StatusCode::OK } else { StatusCode::CREATED };
    completed_checkpoint(&app, caller.org, id, (submitted, status), max_wait).await
}

/// Restore a checkpoint
///
/// The current sandbox is removed with its files; the next sandbox starts with the files of the
/// checkpoint. Rejected while a turn or a command runs.
#[utoipa::path(post, path = "/sessions/{session_id}/restore", tag = "sandbox", operation_id = "restoreSession",
    params(("session_id" = SessionId, Path)), request_body = Restore,
    responses((status = 200, body = CheckpointView), Errors))]
pub async fn restore(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    max_wait: MaxWait,
    Body { value: wanted, digest }: Body<Restore>,
) -> Result<Answer, ApiError> {
    let id: SessionId = path::id(&session)?;
    let unknown = || ApiError { param: Some("checkpoint_id".to_owned()), ..ApiError::not_found() };
    let checkpoint: CheckpointId = wanted.checkpoint_id.parse().map_err(|_| unknown())?;
    let stamp = caller.stamp(app.0.journal.origin());
    let submitted = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        unit.tx().lock_session(id).await?;
        let all = unit.tx().checkpoints(id).await?;
        if !all.iter().any(|known| known.checkpoint == checkpoint) {
            return Err(unknown());
        }
        operate(unit, id, &Request::Restore { checkpoint }, &stamp).await
    });
    completed_checkpoint(&app, caller.org, id, (submitted.await?, StatusCode::OK), max_wait).await
}

/// Waits for an operation that creates or restores a checkpoint and returns the checkpoint.
async fn completed_checkpoint(
    app: &App,
    org: OrgId,
    session: SessionId,
    (submitted, status): (Answer, StatusCode),
    max_wait: MaxWait,
) -> Result<Answer, ApiError> {
    let Some(Outcome::Kept { checkpoint }) = outcome(app, org, session, &submitted, max_wait).await? else {
        let message = "the sandbox is busy; the operation stays queued and will run later";
        return Err(ApiError::conflict("sandbox_busy", message));
    };
    let all = app.0.store.begin(org).await?.checkpoints(session).await?;
    let found =
        all.into_iter().find(|known| known.checkpoint == checkpoint).ok_or_else(ApiError::not_found)?;
    Ok(Answer { replayed: submitted.replayed, ..Answer::new(status, &view(found)) })
}

fn view(checkpoint: Checkpoint) -> CheckpointView {
    CheckpointView {
        id: checkpoint.checkpoint,
        sandbox_id: checkpoint.sandbox,
        digest: checkpoint.digest,
        bytes: checkpoint.bytes,
        by_hand: checkpoint.is_retained,
        created_at: checkpoint.created_at,
    }
}
