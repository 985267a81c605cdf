//! Delete, export and import whole sessions.

use std::str;

use axum::body::Body as HttpBody;
use futures::StreamExt;
use serde_json::json;

use crate::{
    base::limit::IMPORTS_MAX,
    domain::{RevisionId, SessionId, transcript},
    http::{
        body::Lines,
        download::ndjson,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    wire::{
        ErrorType,
        session::{ImportedSession, SessionView},
    },
};

/// Delete a session with its log, blobs and sandbox
///
/// This cannot be undone. Only a record in the audit log remains.
#[utoipa::path(delete, path = "/sessions/{session_id}", tag = "sessions", operation_id = "deleteSession",
    params(("session_id" = SessionId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(caller: Caller<WriteSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let stamp = caller.stamp();
    let mut unit = caller.unit().await?;
    unit.delete(id, &stamp).await?;
    unit.commit().await?;
    if let Err(error) = caller.app.0.journal.remove_blobs(caller.org, id).await {
        tracing::warn!(session.id = %id, %error, "could not remove blobs of a deleted session; retried later");
    }
    Ok(no_content())
}

/// Export a session
///
/// Returns its log as lines of JSON with complete bodies, and a hash as the last line.
#[utoipa::path(get, path = "/sessions/{session_id}/export", tag = "sessions", operation_id = "exportSession",
    params(("session_id" = SessionId, Path)),
    responses((status = 200, content((String = "application/x-ndjson"))), Errors))]
pub(super) async fn export(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let session = caller.begin().await?.session(id).await?;
    let export = caller.app.0.journal.export(caller.org, session);
    let lines = futures::stream::unfold(Some(export), async |export| {
        let mut export = export?;
        match export.next().await {
            Ok(lines) => lines.map(|lines| (Ok(lines), Some(export))),
            // The connection is cut, so the file lacks its last line and is recognizably incomplete.
            Err(error) => {
                tracing::warn!(%error, "export interrupted");
                Some((Err(std::io::Error::other("the export was interrupted")), None))
            }
        }
    });
    Ok(ndjson(HttpBody::from_stream(lines.boxed()), &format!("{id}.ndjson")))
}

/// Import an exported session
///
/// Creates a new session with new ids and `source: import`. It keeps its agent only if this organization
/// has the pinned revision. Imported usage does not count, and webhooks receive none of the imported
/// events.
#[utoipa::path(post, path = "/sessions/import", tag = "sessions", operation_id = "importSession",
    request_body(content = String, content_type = "application/x-ndjson"),
    responses((status = 201, body = ImportedSession), Errors))]
pub(super) async fn import(
    caller: Caller<WriteSessions>,
    Idempotent(once, Lines(bytes)): Idempotent<Lines>,
) -> Result<Answer> {
    let Ok(_place) = caller.app.0.imports.try_acquire() else {
        tracing::warn!(IMPORTS_MAX, "import rejected: too many concurrent imports");
        return Err(ApiError::unavailable(std::time::Duration::from_secs(2)));
    };
    let text =
        str::from_utf8(&bytes).map_err(|_| ApiError::new(ErrorType::Invalid, "the body must be UTF-8"))?;
    let origin = caller.origin();
    let stamp = caller.stamp();
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let known = known_revision(unit, text).await?;
        let knows = |revision: &str| known.as_deref() == Some(revision);
        let read = transcript::read(text, origin.id(), knows, origin)
            .map_err(|fault| ApiError::new(ErrorType::Invalid, fault.to_string()))?;
        let session = unit.import(read, &stamp).await?;
        Ok(Answer::new(StatusCode::CREATED, &json!({ "session": SessionView::from(session) })))
    })
    .await
}

/// Returns the revision that the session was pinned to, if this organization has it.
async fn known_revision(unit: &mut Unit, text: &str) -> Result<Option<String>> {
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
