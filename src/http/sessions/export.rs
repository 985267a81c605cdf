//! Delete, export and import whole sessions.

use std::str;

use axum::body::Body as HttpBody;
use futures::StreamExt;
use serde_json::json;

use crate::{
    base::limit::IMPORTS_MAX,
    domain::{SessionId, session::Pins, transcript},
    http::{
        body::Lines,
        download::ndjson,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    store,
    trigger::{self, Choice},
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
/// Creates a new session with new ids and `source: import`. It keeps its agent if this organization has the agent and
/// the pinned revision, and a credential for the model; tools and settings are those of the revision, whatever the file
/// says. Imported usage does not count, and webhooks receive none of the imported events.
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
        let pins = pins(unit, text, caller.app.0.scripted).await?;
        let read = transcript::read(text, origin.id(), pins.as_ref(), origin)
            .map_err(|fault| ApiError::new(ErrorType::Invalid, fault.to_string()))?;
        let session = unit.import(read, &stamp).await?;
        Ok(Answer::new(StatusCode::CREATED, &json!({ "session": SessionView::from(session) })))
    })
    .await
}

/// Returns what a new session would pin of the revision and the model that the file names; `None` if this organization
/// could not create one.
async fn pins(unit: &mut Unit, text: &str, scripted: bool) -> Result<Option<Pins>> {
    let created: Option<serde_json::Value> =
        text.lines().nth(1).and_then(|line| serde_json::from_str(line).ok());
    let named = created.as_ref().map(|event| &event["body"]["agent_snapshot"]);
    let text = |field| named.and_then(|named| named[field].as_str());
    let (Some(Ok(revision)), Some(model)) = (text("revision_id").map(str::parse), text("model")) else {
        return Ok(None);
    };
    let Some(revision) = found(unit.tx().revision(revision).await)? else { return Ok(None) };
    let Some(agent) = found(unit.tx().agent(revision.agent).await)? else { return Ok(None) };
    let choice = Choice { model: Some(model.to_owned()), scripted, ..Choice::of(agent, revision) };
    match trigger::pins(unit, choice).await {
        Ok(pins) => Ok(Some(pins)),
        Err(
            trigger::Refused::Model(_)
            | trigger::Refused::NoCredential(_)
            | trigger::Refused::UnknownSkill(_)
            | trigger::Refused::UnreadableSkills,
        ) => Ok(None),
        Err(refused) => Err(refused.into()),
    }
}

fn found<T>(read: store::Result<T>) -> store::Result<Option<T>> {
    match read {
        Ok(row) => Ok(Some(row)),
        Err(store::Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
