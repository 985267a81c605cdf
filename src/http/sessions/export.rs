//! Delete, export and import whole sessions.

use std::{str, time::Duration};

use axum::{body::Body as HttpBody, extract::FromRequestParts, http::request::Parts};
use futures::StreamExt;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    base::{
        limit::{IMPORT_WAIT, IMPORTS_MAX, NAME_BYTES_MAX},
        shares::Place,
    },
    domain::{Session, SessionId, session::Pins, transcript},
    http::{
        body::{Lines, on_blocking_thread},
        download::ndjson,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    journal, store,
    trigger::{self, Choice},
    wire::{
        ErrorType,
        context::context_problem,
        import::check_log,
        metadata::validate_metadata,
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

/// A caller that may import, with a place among the imports; taken before the body is read.
pub(super) struct Importer {
    caller: Caller<WriteSessions>,
    _place: Place,
}

impl FromRequestParts<App> for Importer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match timeout(IMPORT_WAIT, app.0.imports.take(Some(caller.org))).await {
            Ok(place) => Ok(Self { caller, _place: place }),
            Err(_) => {
                tracing::warn!(IMPORTS_MAX, "import rejected: too many concurrent imports");
                Err(ApiError::unavailable(Duration::from_secs(2)))
            }
        }
    }
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
    Importer { caller, _place }: Importer,
    Idempotent(once, Lines(bytes)): Idempotent<Lines>,
) -> Result<Answer> {
    let text =
        str::from_utf8(&bytes).map_err(|_| ApiError::new(ErrorType::Invalid, "the body must be UTF-8"))?;
    let (origin, stamp) = (caller.origin(), caller.stamp());
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let pins = pins(unit, text, caller.app.0.scripted).await?;
        let (text, origin) = (text.to_owned(), origin.clone());
        // It takes up to seconds.
        let read = on_blocking_thread(move || {
            let read = transcript::read(&text, origin.id(), pins.as_ref(), &origin)?;
            check_log(&read.log).map(|()| read)
        });
        let read = read.await?.map_err(|fault| ApiError::new(ErrorType::Invalid, fault.to_string()))?;
        check_state(&read.session)?;
        let session = unit.import(read, &stamp).await.map_err(|error| match error {
            journal::Error::Store(store::Error::Conflict(_)) => ApiError::new(ErrorType::Invalid, NO_LOG),
            error => error.into(),
        })?;
        Ok(Answer::new(StatusCode::CREATED, &json!({ "session": SessionView::from(session) })))
    })
    .await
}

const NO_LOG: &str = "line 0: the events are not those of one session";

/// Checks what a caller could set, as it is at the end of an imported log.
fn check_state(session: &Session) -> Result<()> {
    let title = session.created.title.as_deref().unwrap_or_default();
    if title.len() > NAME_BYTES_MAX {
        return Err(ApiError::invalid("title", format!("a title has at most {NAME_BYTES_MAX} bytes")));
    }
    let metadata = validate_metadata(&session.created.metadata, &());
    metadata.map_err(|error| ApiError::invalid("metadata", format!("`metadata` {error}")))?;
    match context_problem(&session.context) {
        None => Ok(()),
        Some((field, words)) => Err(ApiError::invalid(field, format!("`{field}` {words}"))),
    }
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
