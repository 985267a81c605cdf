//! Read, write and list files of a session's sandbox.
//!
//! The holder of the session's lease executes the operation; the bytes are passed through the blob store.

use axum::{
    body::Body as HttpBody,
    http::{HeaderMap, HeaderValue, header},
    response::IntoResponse,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::operations::{self, MaxWait};
use crate::{
    base::limit::{FILE_READ_BYTES_MAX, FILE_WRITE_BYTES_MAX},
    domain::{
        SessionId,
        operation::{Answer, Request},
    },
    http::{
        body::Raw,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    wire::{
        ErrorType,
        operation::{Directory, FileWritten},
    },
};

/// Path of a file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FileQuery {
    /// Absolute, or relative to `/workspace`.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
}

/// Path of a directory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DirectoryQuery {
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
pub(super) async fn read(
    caller: Caller<ReadSessions>,
    Path(session): Path<SessionId>,
    Query(query): Query<FileQuery>,
    max_wait: MaxWait,
    headers: HeaderMap,
) -> Result<Response> {
    let path = absolute_path(&query.path)?;
    let range = headers.get(header::RANGE).map(range).transpose()?;
    let (first, last) = range.unwrap_or((0, None));
    let bytes_max =
        last.map_or(FILE_READ_BYTES_MAX, |last| (last - first).saturating_add(1).min(FILE_READ_BYTES_MAX));
    let request = Request::Read { path, offset: first, bytes_max };
    let Answer::Read { blob, bytes, size } = operations::read(&caller, session, &request, max_wait).await?
    else {
        return Err(ApiError::not_found());
    };
    let content = take(&caller.app, &blob).await?;
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
    let mut response = content_of(&query.path, "application/octet-stream", content, part);
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
pub(super) async fn write(
    caller: Caller<WriteSessions>,
    Path(session): Path<SessionId>,
    Query(query): Query<FileQuery>,
    max_wait: MaxWait,
    Raw(content): Raw,
) -> Result<Response> {
    let path = absolute_path(&query.path)?;
    if content.len() > FILE_WRITE_BYTES_MAX {
        let message = format!("a file may have at most {FILE_WRITE_BYTES_MAX} bytes");
        return Err(ApiError::new(ErrorType::TooLarge, message));
    }
    let store = |app: App, blob: String| async move { Ok(app.0.blobs.put(&blob, content).await?) };
    let request = |blob| Request::Write { path: path.clone(), blob };
    let bytes = operations::write(&caller, session, max_wait, store, request).await?;
    Ok(respond(&FileWritten { path, bytes }))
}

/// List a directory
///
/// Sorted by name.
#[utoipa::path(get, path = "/sessions/{session_id}/files/list", tag = "sandbox", operation_id = "listFiles",
    params(("session_id" = SessionId, Path), DirectoryQuery),
    responses((status = 200, body = Directory), Errors))]
pub(super) async fn list(
    caller: Caller<ReadSessions>,
    Path(session): Path<SessionId>,
    Query(query): Query<DirectoryQuery>,
    max_wait: MaxWait,
) -> Result<Response> {
    let path = absolute_path(query.path.as_deref().unwrap_or("/workspace"))?;
    let request = Request::List { path: path.clone() };
    let Answer::Listed { entries, is_cut } = operations::read(&caller, session, &request, max_wait).await?
    else {
        return Err(ApiError::not_found());
    };
    let entries = entries.into_iter().map(Into::into).collect();
    Ok(respond(&Directory { path, entries, truncated: is_cut }))
}

/// Returns the content of a blob that an operation stored for one response, and deletes the blob.
pub(super) async fn take(app: &App, blob: &str) -> Result<HttpBody> {
    let content = app.0.blobs.stream(blob).await?;
    // An open stream reads to its end. If the delete fails, the blob is removed with the operation.
    let _ = app.0.blobs.delete(blob).await;
    Ok(HttpBody::from_stream(content))
}

/// Returns an absolute path in the sandbox.
pub(super) fn absolute_path(path: &str) -> Result<String> {
    if path.is_empty() || path.len() > 4_096 || path.contains('\0') {
        return Err(ApiError::invalid("path", "`path` must have 1 to 4096 bytes without U+0000"));
    }
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") })
}

/// Parses `bytes=first-last`, both inclusive.
fn range(value: &HeaderValue) -> Result<(u64, Option<u64>)> {
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
pub(super) fn content_of(
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
