//! Summary of a session's history on request.

use super::change::request;
use crate::{
    domain::{SessionId, compaction::CompactionRequest, decide::Command},
    http::{prelude::*, scope::WriteSessions},
    wire::{control::CompactSession, message::Steered},
};

/// Summarize the history of a session
///
/// The model summarizes the beginning of its history before its next call; an idle session gets a turn for it. The log
/// keeps all events.
#[utoipa::path(post, path = "/sessions/{session_id}/compact", tag = "sessions", operation_id = "compactSession",
    params(("session_id" = SessionId, Path)), request_body = CompactSession,
    responses((status = 202, body = Steered), (status = 200, body = Steered,
        description = "The request repeats an `Idempotency-Key`."), Errors))]
pub(super) async fn compact(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<CompactSession>>,
) -> Result<Answer> {
    let command = Command::Compact(CompactionRequest { instructions: wanted.instructions });
    request(&caller, &once, async |unit, stamp| Ok(unit.execute(id, command, stamp).await?)).await
}
