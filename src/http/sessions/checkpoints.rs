//! The checkpoints of a session.

use axum::{extract::State, response::Response};

use crate::{
    domain::SessionId,
    http::{
        App,
        auth::{Caller, ReadSessions},
        error::ApiError,
        openapi::Errors,
        path::{self, Path},
        write::json,
    },
    store::checkpoint::Checkpoint,
    wire::{Page, sandbox::CheckpointView},
};

/// List checkpoints, newest first. Few are kept, so that there is one page.
#[utoipa::path(get, path = "/sessions/{session_id}/checkpoints", tag = "sessions", operation_id = "listCheckpoints",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = Page<CheckpointView>), Errors))]
pub async fn list(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let id = path::id(&session)?;
    let mut tx = app.0.store.begin(caller.tenant).await?;
    tx.session(id).await?;
    let view = |checkpoint: Checkpoint| CheckpointView {
        id: checkpoint.checkpoint,
        sandbox_id: checkpoint.sandbox,
        digest: checkpoint.digest,
        bytes: checkpoint.bytes,
        created_at: checkpoint.created_at,
    };
    let data = tx.checkpoints(id).await?.into_iter().map(view).collect();
    Ok(json(&Page { data, next_cursor: None }))
}
