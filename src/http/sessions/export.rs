//! Sessions as a whole: delete, export, import.

use std::str;

use axum::{body::Body as HttpBody, extract::State, http::StatusCode, response::Response};
use futures::StreamExt;
use serde_json::json;

use crate::{
    base::limit::IMPORTS_MAX,
    domain::{RevisionId, SessionId, transcript},
    http::{
        App,
        auth::{Caller, ReadSessions, WriteSessions},
        body::Lines,
        error::ApiError,
        idempotency::{Answer, IdempotentRequest, no_content},
        openapi::Errors,
        organization::ndjson,
        path::{self, Path},
    },
    journal::Unit,
    wire::{
        ErrorType,
        session::{ImportedSession, SessionView},
    },
};

/// Delete a session with everything that it has: log, blobs, sandbox. Nothing brings it
/// back; only a record of the audit log stays.
#[utoipa::path(delete, path = "/sessions/{session_id}", tag = "sessions", operation_id = "deleteSession",
    params(("session_id" = SessionId, Path)), responses((status = 204), Errors))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let id: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let mut unit = app.0.journal.begin(caller.org).await?;
    unit.delete(id, &stamp, "asked").await?;
    unit.commit().await?;
    if let Err(error) = app.0.journal.remove_blobs(caller.org, id).await {
        tracing::warn!(session.id = %id, %error, "blobs of a deleted session stay until a worker removes them");
    }
    Ok(no_content())
}

/// Export a session: its log as lines of JSON, whole bodies, and a hash at the end.
#[utoipa::path(get, path = "/sessions/{session_id}/export", tag = "sessions", operation_id = "exportSession",
    params(("session_id" = SessionId, Path)),
    responses((status = 200, content((String = "application/x-ndjson"))), Errors))]
pub async fn export(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    let id: SessionId = path::id(&session)?;
    let session = app.0.store.begin(caller.org).await?.session(id).await?;
    let export = app.0.journal.export(caller.org, session);
    let lines = futures::stream::unfold(Some(export), async |export| {
        let mut export = export?;
        match export.next().await {
            Ok(lines) => lines.map(|lines| (Ok(lines), Some(export))),
            // A cut connection: the file has no last line and is known to be broken.
            Err(error) => {
                tracing::warn!(%error, "an export was cut");
                Some((Err(std::io::Error::other("the export was cut")), None))
            }
        }
    });
    Ok(ndjson(HttpBody::from_stream(lines.boxed()), &format!("{id}.ndjson")))
}

/// Import what an export wrote, as a new session with new ids, marked `source: import`.
/// It has its agent only where this organization has the pinned revision; nothing of it
/// counts as used, and no webhook is told of its old events.
#[utoipa::path(post, path = "/sessions/import", tag = "sessions", operation_id = "importSession",
    request_body(content = String, content_type = "application/x-ndjson"),
    responses((status = 201, body = ImportedSession), Errors))]
pub async fn import(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    once: IdempotentRequest,
    Lines { bytes, digest }: Lines,
) -> Result<Answer, ApiError> {
    let Ok(_place) = app.0.imports.try_acquire() else {
        tracing::warn!(IMPORTS_MAX, "an import was refused: as many as may are under way");
        return Err(ApiError::unavailable(std::time::Duration::from_secs(2)));
    };
    let text =
        str::from_utf8(&bytes).map_err(|_| ApiError::new(ErrorType::Invalid, "the lines must be UTF-8"))?;
    let origin = app.0.journal.origin();
    let stamp = caller.stamp(origin);
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let known = known_revision(unit, text).await?;
        let knows = |revision: &str| known.as_deref() == Some(revision);
        let read = transcript::read(text, origin.id(), knows, origin)
            .map_err(|fault| ApiError::new(ErrorType::Invalid, fault.to_string()))?;
        let session = unit.import(read, &stamp).await?;
        Ok(Answer::new(StatusCode::CREATED, &json!({ "session": SessionView::from(session) })))
    })
    .await
}

/// The revision that the session was pinned to, if this organization has it.
async fn known_revision(unit: &mut Unit, text: &str) -> Result<Option<String>, ApiError> {
    let created: Option<serde_json::Value> =
        text.lines().nth(1).and_then(|line| serde_json::from_str(line).ok());
    let pinned = created.as_ref().map(|event| &event["body"]["agent_snapshot"]["revision_id"]);
    let Some(revision) = pinned.and_then(|id| id.as_str()) else { return Ok(None) };
    let Ok(id) = revision.parse::<RevisionId>() else { return Ok(None) };
    match unit.tx().revision(id).await {
        Ok(_) => Ok(Some(revision.to_owned())),
        Err(crate::store::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
