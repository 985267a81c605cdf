//! Checkpoints of a session: create, list, restore.

use super::operations::{MaxWait, operate, outcome, submitted_by};
use crate::{
    domain::{
        CheckpointId, SessionId,
        operation::{Answer as Outcome, Request},
    },
    http::{
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    store::checkpoint::Checkpoint,
    wire::sandbox::{CheckpointView, Restore},
};

/// List checkpoints
///
/// Newest first. Few are retained, so the list has one page.
#[utoipa::path(get, path = "/sessions/{session_id}/checkpoints", tag = "sessions", operation_id = "listCheckpoints",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = Page<CheckpointView>), Errors))]
pub(super) async fn list(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.session(id).await?;
    let data = tx.checkpoints(id).await?.into_iter().map(view).collect();
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Create a checkpoint of the session's files
///
/// The sandbox is frozen while its files are read. If no file changed, the newest checkpoint is returned.
/// The newest 8 that callers created are retained.
#[utoipa::path(post, path = "/sessions/{session_id}/checkpoints", tag = "sandbox", operation_id = "createCheckpoint",
    params(("session_id" = SessionId, Path)), responses((status = 201, body = CheckpointView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    max_wait: MaxWait,
    once: IdempotentRequest,
) -> Result<Answer> {
    let stamp = caller.stamp();
    let submitted = once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        operate(unit, id, &Request::Checkpoint, &stamp).await
    });
    let submitted = submitted.await?;
    let status = if submitted.replayed { StatusCode::OK } else { StatusCode::CREATED };
    completed_checkpoint(&caller, id, (submitted, status), max_wait).await
}

/// Restore a checkpoint
///
/// The current sandbox is removed with its files; the next sandbox starts with the files of the
/// checkpoint. Rejected while a turn or a command runs.
#[utoipa::path(post, path = "/sessions/{session_id}/restore", tag = "sandbox", operation_id = "restoreSession",
    params(("session_id" = SessionId, Path)), request_body = Restore,
    responses((status = 200, body = CheckpointView), Errors))]
pub(super) async fn restore(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    max_wait: MaxWait,
    Idempotent(once, Body(wanted)): Idempotent<Body<Restore>>,
) -> Result<Answer> {
    let unknown = || ApiError { param: Some("checkpoint_id".to_owned()), ..ApiError::not_found() };
    let checkpoint: CheckpointId = wanted.checkpoint_id.parse().map_err(|_| unknown())?;
    let stamp = caller.stamp();
    let submitted = once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        unit.tx().lock_session(id).await?;
        let all = unit.tx().checkpoints(id).await?;
        if !all.iter().any(|known| known.checkpoint == checkpoint) {
            return Err(unknown());
        }
        operate(unit, id, &Request::Restore { checkpoint }, &stamp).await
    });
    completed_checkpoint(&caller, id, (submitted.await?, StatusCode::OK), max_wait).await
}

/// Waits for an operation that creates or restores a checkpoint and returns the checkpoint.
async fn completed_checkpoint(
    caller: &Caller<WriteSessions>,
    session: SessionId,
    (submitted, status): (Answer, StatusCode),
    max_wait: MaxWait,
) -> Result<Answer> {
    let operation = submitted_by(&submitted);
    let Some(Outcome::Kept { checkpoint }) = outcome(caller, session, operation, max_wait).await? else {
        let message = "the sandbox is busy; the operation stays queued and will run later";
        return Err(ApiError::conflict("sandbox_busy", message));
    };
    let all = caller.begin().await?.checkpoints(session).await?;
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
