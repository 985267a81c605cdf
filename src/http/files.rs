//! Stored files: upload, list, read, delete.

use std::time::Duration;

use axum::{body::Body as HttpBody, extract::FromRequestParts, http::request::Parts};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    base::{
        limit::{FILE_NAME_BYTES_MAX, FILE_UPLOAD_WAIT, FILE_UPLOADS_MAX},
        shares::Place,
    },
    domain::{FileId, SessionId},
    http::{
        body::Raw,
        download::attachment,
        prelude::*,
        scope::{ReadFiles, Scope, WriteFiles},
    },
    store::{self, file::StoredFile},
    wire::content::FileView,
};

/// Routes of files.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(upload, list)).routes(routes!(get, delete)).routes(routes!(content))
}

/// Name of an uploaded file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UploadQuery {
    /// Its name in the sandbox; what is before the last `/` is removed.
    #[param(min_length = 1, max_length = 255)]
    pub name: String,
}

/// Filters of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FilesQuery {
    /// Only the files of this session.
    pub session: Option<SessionId>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// A caller that may upload, with a place among the uploads; taken before the body is read.
pub(super) struct Uploader<S: Scope> {
    pub caller: Caller<S>,
    _place: Place,
}

impl<S: Scope> FromRequestParts<App> for Uploader<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match timeout(FILE_UPLOAD_WAIT, app.0.uploads.take(Some(caller.org))).await {
            Ok(place) => Ok(Self { caller, _place: place }),
            Err(_) => {
                tracing::warn!(FILE_UPLOADS_MAX, "upload rejected: too many concurrent uploads");
                Err(ApiError::unavailable(Duration::from_secs(2)))
            }
        }
    }
}

/// Upload a file
///
/// The body has the bytes, at most 30 MiB. Its type is found in the bytes. An image is decoded, and refused if it is damaged. The
/// file exists until it is deleted.
#[utoipa::path(post, path = "/files", tag = "files", operation_id = "uploadFile", params(UploadQuery),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 201, body = FileView), Errors))]
pub(super) async fn upload(
    uploader: Uploader<WriteFiles>,
    Query(query): Query<UploadQuery>,
    Idempotent(once, Raw(content)): Idempotent<Raw>,
) -> Result<Answer> {
    if query.name.is_empty() || query.name.len() > FILE_NAME_BYTES_MAX {
        return Err(ApiError::invalid("name", format!("a name has 1 to {FILE_NAME_BYTES_MAX} bytes")));
    }
    let caller = &uploader.caller;
    let once = once.for_target(&query.name);
    if let Some(answer) = once.replay(&caller.app, caller.org).await? {
        return Ok(answer);
    }
    let file = caller.app.0.files.create(caller.org, &query.name, content).await?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        unit.tx().keep_file(file.id).await?;
        Ok(Answer::new(StatusCode::CREATED, &view(StoredFile { kept: true, ..file })))
    })
    .await
}

/// List files
///
/// Newest first: those that were uploaded, and those that sessions use.
#[utoipa::path(get, path = "/files", tag = "files", operation_id = "listStoredFiles",
    params(FilesQuery), responses((status = 200, body = Page<FileView>), Errors))]
pub(super) async fn list(caller: Caller<ReadFiles>, Query(query): Query<FilesQuery>) -> Result<Response> {
    let list = caller.list("files", &query.session).at(query.limit, query.cursor.as_deref())?;
    let files = caller.begin().await?.files(query.session, list.below, list.limit()).await?;
    Ok(respond(&list.page(files, |file| file.id, view)))
}

/// Get a file
#[utoipa::path(get, path = "/files/{file_id}", tag = "files", operation_id = "getFile",
    params(("file_id" = FileId, Path)), responses((status = 200, body = FileView), Errors))]
pub(super) async fn get(caller: Caller<ReadFiles>, Path(file): Path<FileId>) -> Result<Response> {
    Ok(respond(&view(caller.begin().await?.file(file).await?)))
}

/// Read the bytes of a file
///
/// As they were uploaded, as an attachment.
#[utoipa::path(get, path = "/files/{file_id}/content", tag = "files", operation_id = "readStoredFile",
    params(("file_id" = FileId, Path)),
    responses((status = 200, content((String = "application/octet-stream"))), Errors))]
pub(super) async fn content(caller: Caller<ReadFiles>, Path(file): Path<FileId>) -> Result<Response> {
    let stored = caller.begin().await?.file(file).await?;
    let bytes = caller.app.0.files.stream(caller.org, stored.id).await?;
    Ok(attachment("application/octet-stream", stored.bytes, HttpBody::from_stream(bytes)))
}

/// Delete a file
///
/// 409 while a session uses it.
#[utoipa::path(delete, path = "/files/{file_id}", tag = "files", operation_id = "deleteFile",
    params(("file_id" = FileId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(caller: Caller<WriteFiles>, Path(file): Path<FileId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    match tx.delete_file(file).await {
        Err(store::Error::Conflict(constraint)) if constraint == "session_file_exists" => {
            return Err(ApiError::conflict("in_use", "a session uses this file; delete the session first"));
        }
        deleted => deleted?,
    }
    caller.record_audit(&mut tx, "file.deleted", file, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

fn view(file: StoredFile) -> FileView {
    let StoredFile { id, name, media_type, bytes, sha256, image, kept, created_at } = file;
    FileView { id, name, media_type, bytes, sha256, image, kept, created_at }
}
