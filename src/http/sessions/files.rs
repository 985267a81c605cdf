//! Read, write and list files of a session's sandbox.
//!
//! The holder of the session's lease executes the operation; the bytes are passed through the blob store.

use axum::{
    body::Body as HttpBody,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::execs::{MaxWait, check_queued, file};
use crate::{
    base::limit::{FILE_READ_BYTES_MAX, FILE_WRITE_BYTES_MAX},
    domain::{
        OperationId, SessionId,
        operation::{Answer, Request},
    },
    http::{
        App,
        auth::{Caller, ReadSessions, Scope, WriteSessions},
        body::Raw,
        error::ApiError,
        idempotency::json,
        openapi::Errors,
        page::Query,
        path::{self, Path},
    },
    journal::operation_blob,
    wire::{
        ErrorType,
        operation::{Directory, FileWritten},
    },
};

/// Path of a file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    /// Absolute, or relative to `/workspace`.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
}

/// Path of a directory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DirectoryQuery {
    /// Absolute, or relative to `/workspace`; `/workspace` when absent.
    #[param(min_length = 1, max_length = 4096)]
    pub path: Option<String>,
}

/// Read a file or a range of it
///
/// At most 64 MiB per request; use `Range: bytes=first-last` to read a part.
#[utoipa::path(get, path = "/sessions/{session_id}/files", tag = "sandbox", operation_id = "readFile",
    params(("session_id" = SessionId, Path), FileQuery,
        ("Range" = Option<String>, Header, description = "`bytes=first-last` or `bytes=first-`.")),
    responses((status = 200, content((String = "application/octet-stream"))),
        (status = 206, content((String = "application/octet-stream"))), Errors))]
pub async fn read(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
    Query(query): Query<FileQuery>,
    max_wait: MaxWait,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let session: SessionId = path::id(&session)?;
    let path = absolute_path(&query.path)?;
    let range = headers.get(header::RANGE).map(range).transpose()?;
    let (first, last) = range.unwrap_or((0, None));
    let bytes_max = last.map_or(FILE_READ_BYTES_MAX, |last| (last - first + 1).min(FILE_READ_BYTES_MAX));
    let request = Request::Read { path, offset: first, bytes_max };
    let operation = submit(&app, &caller, session, &request).await?;
    let Answer::Read { blob, bytes, size } = file(&app, caller.org, session, operation, max_wait).await?
    else {
        return Err(ApiError::not_found());
    };
    let content = app.0.blobs.stream(&blob).await?;
    // An open stream reads to its end. If the delete fails, the blob is removed with the operation.
    let _ = app.0.blobs.delete(&blob).await;
    let is_cut = bytes < size && range.is_none();
    if is_cut {
        let message =
            format!("the file has {size} bytes; use `Range` to read at most {FILE_READ_BYTES_MAX} at once");
        return Err(ApiError::new(ErrorType::TooLarge, message));
    }
    // A range from 0 of an empty file is the whole file.
    let range = range.filter(|_| size > 0 || first > 0);
    if range.is_some() && bytes == 0 && first >= size {
        return Err(ApiError::invalid("Range", format!("the file has {size} bytes")));
    }
    let part = range.map(|_| (first, bytes, size));
    let mut response =
        content_of(&query.path, "application/octet-stream", HttpBody::from_stream(content), part);
    response.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    Ok(response)
}

/// Write a file
///
/// Written as the sandbox's user; missing directories are created. At most 3 MiB.
#[utoipa::path(put, path = "/sessions/{session_id}/files", tag = "sandbox", operation_id = "writeFile",
    params(("session_id" = SessionId, Path), FileQuery),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = FileWritten), Errors))]
pub async fn write(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    Query(query): Query<FileQuery>,
    max_wait: MaxWait,
    Raw(content): Raw,
) -> Result<Response, ApiError> {
    let session: SessionId = path::id(&session)?;
    let path = absolute_path(&query.path)?;
    if content.len() > FILE_WRITE_BYTES_MAX {
        let message = format!("a file may have at most {FILE_WRITE_BYTES_MAX} bytes");
        return Err(ApiError::new(ErrorType::TooLarge, message));
    }
    let operation: OperationId = app.0.journal.origin().id();
    let blob = operation_blob(caller.org, session, operation);
    // Checks access before anything is stored.
    app.0.store.begin(caller.org).await?.session(session).await?;
    app.0.blobs.put(&blob, content).await?;
    let request = Request::Write { path: path.clone(), blob: blob.clone() };
    if let Err(refused) = submit_as(&app, &caller, session, operation, &request).await {
        // The operation was rejected, so nothing reads the blob.
        app.0.blobs.delete(&blob).await?;
        return Err(refused);
    }
    let Answer::Written { bytes } = file(&app, caller.org, session, operation, max_wait).await? else {
        return Err(ApiError::not_found());
    };
    // The file is written. Otherwise the blob is removed with the operation.
    let _ = app.0.blobs.delete(&blob).await;
    Ok(json(&FileWritten { path, bytes }))
}

/// List a directory
///
/// Sorted by name.
#[utoipa::path(get, path = "/sessions/{session_id}/files/list", tag = "sandbox", operation_id = "listFiles",
    params(("session_id" = SessionId, Path), DirectoryQuery),
    responses((status = 200, body = Directory), Errors))]
pub async fn list(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path(session): Path<String>,
    Query(query): Query<DirectoryQuery>,
    max_wait: MaxWait,
) -> Result<Response, ApiError> {
    let session: SessionId = path::id(&session)?;
    let path = absolute_path(query.path.as_deref().unwrap_or("/workspace"))?;
    let request = Request::List { path: path.clone() };
    let operation = submit(&app, &caller, session, &request).await?;
    let Answer::Listed { entries, is_cut } = file(&app, caller.org, session, operation, max_wait).await?
    else {
        return Err(ApiError::not_found());
    };
    let entries = entries.into_iter().map(Into::into).collect();
    Ok(json(&Directory { path, entries, truncated: is_cut }))
}

pub async fn submit<S: Scope>(
    app: &App,
    caller: &Caller<S>,
    session: SessionId,
    request: &Request,
) -> Result<OperationId, ApiError> {
    let operation: OperationId = app.0.journal.origin().id();
    submit_as(app, caller, session, operation, request).await?;
    Ok(operation)
}

pub async fn submit_as<S: Scope>(
    app: &App,
    caller: &Caller<S>,
    session: SessionId,
    operation: OperationId,
    request: &Request,
) -> Result<(), ApiError> {
    let stamp = caller.stamp(app.0.journal.origin());
    let mut unit = app.0.journal.begin(caller.org).await?;
    check_queued(unit.operate(session, operation, request, &stamp).await?)?;
    Ok(unit.commit().await?)
}

/// Returns an absolute path in the sandbox.
pub fn absolute_path(path: &str) -> Result<String, ApiError> {
    if path.is_empty() || path.len() > 4_096 || path.contains('\0') {
        return Err(ApiError::invalid("path", "`path` must have 1 to 4096 bytes without U+0000"));
    }
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") })
}

/// Parses `bytes=first-last`, both inclusive.
fn range(value: &HeaderValue) -> Result<(u64, Option<u64>), ApiError> {
    let parsed = || {
        let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
        let first = first.parse::<u64>().ok()?;
        let last = match last {
            "" => None,
            last => Some(last.parse::<u64>().ok().filter(|last| *last >= first)?),
        };
        // All lower layers use signed offsets.
        (first <= i64::MAX as u64).then_some((first, last))
    };
    parsed().ok_or_else(|| ApiError::invalid("Range", "`Range` must be `bytes=first-last` or `bytes=first-`"))
}

/// Builds a download response. A browser must never execute content that an agent may have written.
pub fn content_of(
    path: &str,
    media_type: &'static str,
    content: HttpBody,
    part: Option<(u64, u64, u64)>,
) -> Response {
    let mut response = content.into_response();
    let name: String = path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .map(|char| if char.is_ascii_graphic() && !matches!(char, '"' | '\\' | ';') { char } else { '_' })
        .collect();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    headers.insert(
        header::CONTENT_DISPOSITION,
        disposition.unwrap_or_else(|_| HeaderValue::from_static("attachment")),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some((first, bytes, size)) = part {
        let last = first + bytes.saturating_sub(1);
        if let Ok(value) = HeaderValue::from_str(&format!("bytes {first}-{last}/{size}")) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}
