//! Directories of a session's sandbox as tar archives: download and upload.

use std::io::Seek;

use axum::{
    body::{Body as HttpBody, BodyDataStream},
    http::HeaderMap,
};
use futures::StreamExt;
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    files::{DirectoryQuery, absolute_path, content_of, take},
    operations::{self, MaxWait},
};
use crate::{
    base::limit::{ARCHIVE_BYTES_MAX, ARCHIVE_WAIT, ARCHIVES_MAX},
    blob,
    domain::{
        SessionId,
        operation::{Answer, Request},
    },
    http::{
        body::essence,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    wire::{ErrorType, operation::FileWritten},
};

const MEDIA_TYPE: &str = "application/x-tar";

/// Read a directory as a tar archive
///
/// At most 256 MiB, read with the permissions of the sandbox's user while other processes may keep
/// writing. Entry names are relative to the directory.
#[utoipa::path(get, path = "/sessions/{session_id}/archive.tar", tag = "sandbox", operation_id = "readArchive",
    params(("session_id" = SessionId, Path), DirectoryQuery),
    responses((status = 200, content((String = "application/x-tar"))), Errors))]
pub(super) async fn read(
    caller: Caller<ReadSessions>,
    Path(session): Path<SessionId>,
    Query(query): Query<DirectoryQuery>,
    max_wait: MaxWait,
) -> Result<Response> {
    let path = absolute_path(query.path.as_deref().unwrap_or("/workspace"))?;
    let request = Request::ReadTree { path: path.clone() };
    let Answer::Read { blob, .. } = operations::read(&caller, session, &request, max_wait).await? else {
        return Err(ApiError::not_found());
    };
    let content = take(&caller.app, &blob).await?;
    let name = format!("{}.tar", path.trim_end_matches('/'));
    Ok(content_of(&name, MEDIA_TYPE, content, None))
}

/// Unpack a tar archive into a directory
///
/// At most 256 MiB, unpacked over existing files as the sandbox's user. Only files, directories and links
/// are accepted, and no entry may leave the directory. Entries before a rejected one remain.
#[utoipa::path(put, path = "/sessions/{session_id}/archive.tar", tag = "sandbox", operation_id = "writeArchive",
    params(("session_id" = SessionId, Path), DirectoryQuery),
    request_body(content = String, content_type = "application/x-tar"),
    responses((status = 200, body = FileWritten), Errors))]
pub(super) async fn write(
    caller: Caller<WriteSessions>,
    Path(session): Path<SessionId>,
    Query(query): Query<DirectoryQuery>,
    max_wait: MaxWait,
    headers: HeaderMap,
    content: HttpBody,
) -> Result<Response> {
    let path = absolute_path(query.path.as_deref().unwrap_or("/workspace"))?;
    if !essence(&headers).eq_ignore_ascii_case(MEDIA_TYPE) {
        return Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/x-tar"));
    }
    let Ok(place) = timeout(ARCHIVE_WAIT, caller.app.0.archives.take(Some(caller.org))).await else {
        tracing::warn!(ARCHIVES_MAX, "archive rejected: too many concurrent archives");
        return Err(ApiError::unavailable(std::time::Duration::from_secs(2)));
    };
    let store = |app: App, blob: String| async move {
        let _place = place;
        store(&app, &blob, content.into_data_stream()).await
    };
    let request = |blob| Request::WriteTree { path: path.clone(), blob };
    let bytes = operations::write(&caller, session, max_wait, store, request).await?;
    Ok(respond(&FileWritten { path, bytes }))
}

/// Stores a body as it arrives; at most one chunk of it is in memory.
async fn store(app: &App, blob: &str, mut content: BodyDataStream) -> Result<()> {
    let mut file = tokio::fs::File::from_std(app.0.blobs.scratch()?);
    while let Some(part) = content.next().await {
        let part = part.map_err(|error| match is_too_long(&error) {
            true => ApiError::new(
                ErrorType::TooLarge,
                format!("an archive may have at most {ARCHIVE_BYTES_MAX} bytes"),
            ),
            false => ApiError::new(ErrorType::Invalid, format!("the body could not be read: {error}")),
        })?;
        file.write_all(&part).await.map_err(blob::Error::from)?;
    }
    file.flush().await.map_err(blob::Error::from)?;
    let mut file = file.into_std().await;
    file.rewind().map_err(blob::Error::from)?;
    Ok(app.0.blobs.put_file(blob, file).await?)
}

fn is_too_long(error: &axum::Error) -> bool {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
        .any(|error| error.is::<http_body_util::LengthLimitError>())
}
