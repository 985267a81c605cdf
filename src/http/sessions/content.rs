//! Files of messages and of results: stored before the request that has them is decided.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;

use crate::{
    base::limit::{SESSION_FILES_MAX, TEXT_BYTES_MAX},
    domain::{
        FileId, OrgId, SessionId, Status,
        content::{Content, FileRef, files_of, sandbox_path, text_of},
        decide::Rejection,
    },
    file,
    http::{
        auth::SessionCaller,
        prelude::*,
        scope::{Scope, WriteSessions},
    },
    store::{self, file::StoredFile},
    wire::content::{ContentInput, FileSource},
};

/// Checks that a caller may name the files of parts. A client token may send bytes, but name no file of the organization,
/// and no address.
pub(super) fn check_sources<S: Scope>(caller: &SessionCaller<S>, content: &[ContentInput]) -> Result<()> {
    let is_named = |part: &ContentInput| match part {
        ContentInput::Text { .. } => false,
        ContentInput::Image { source, .. } | ContentInput::Document { source, .. } => {
            !matches!(source, FileSource::Base64 { .. })
        }
    };
    if content.iter().any(is_named) { caller.check::<WriteSessions>() } else { Ok(()) }
}

/// Whether files of parts have to be stored.
pub(super) fn has_new_files(content: &[ContentInput]) -> bool {
    content.iter().any(|part| match part {
        ContentInput::Text { .. } => false,
        ContentInput::Image { source, .. } | ContentInput::Document { source, .. } => {
            !matches!(source, FileSource::File { .. })
        }
    })
}

/// Refuses a session that takes no files, before any is stored.
pub(super) async fn check_open(app: &App, org: OrgId, session: SessionId) -> Result<()> {
    match app.0.store.begin(org).await?.session(session).await?.status {
        Status::Archived => Err(Rejection::Archived.into()),
        _ => Ok(()),
    }
}

/// Adds parts to a text. Without a file, all is the text.
///
/// # Errors
/// 400 if the texts together are longer than a message may be.
pub(super) fn join(text: Option<String>, parts: Vec<Content>) -> Result<(Option<String>, Vec<Content>)> {
    if parts.is_empty() {
        return Ok((text, parts));
    }
    let own = text.map(|text| Content::Text { text });
    let parts: Vec<_> = own.into_iter().chain(parts).collect();
    let text = text_of(&parts);
    if text.len() > TEXT_BYTES_MAX {
        let words = format!("the texts of a message have at most {TEXT_BYTES_MAX} bytes together");
        return Err(ApiError::invalid("content", words));
    }
    let has_files = files_of(&parts).next().is_some();
    Ok((Some(text), if has_files { parts } else { Vec::new() }))
}

/// Stores the files of parts, and returns the parts as the log has them.
pub(super) async fn store(app: &App, org: OrgId, wanted: &[ContentInput]) -> Result<Vec<Content>> {
    let mut content = Vec::with_capacity(wanted.len());
    for (index, part) in wanted.iter().enumerate() {
        let at_part = |error: ApiError| {
            let is_invalid = error.status() == StatusCode::BAD_REQUEST;
            ApiError { param: is_invalid.then(|| format!("content[{index}].source")), ..error }
        };
        content.push(match part {
            ContentInput::Text { text } => Content::Text { text: text.clone() },
            ContentInput::Image { source, name } => {
                let file = reference(app, org, source, name.as_deref()).await.map_err(at_part)?;
                if file.image.is_none() {
                    let words =
                        format!("the file is {} and not a PNG, JPEG, GIF or WebP image", file.media_type);
                    return Err(at_part(ApiError::invalid("source", words)));
                }
                Content::Image(file)
            }
            ContentInput::Document { source, name } => {
                Content::Document(reference(app, org, source, name.as_deref()).await.map_err(at_part)?)
            }
        });
    }
    Ok(content)
}

async fn reference(app: &App, org: OrgId, source: &FileSource, name: Option<&str>) -> Result<FileRef> {
    let stored = match source {
        FileSource::File { file_id } => named(app, org, *file_id).await?,
        FileSource::Base64 { data } => {
            let content = BASE64_STANDARD
                .decode(data)
                .map_err(|error| ApiError::invalid("source", format!("`data` is not base64: {error}")))?;
            app.0.files.create(org, name.unwrap_or_default(), content.into()).await?
        }
        FileSource::Url { url } => {
            let fetched = crate::net::for_org(org, file::fetch(&app.0.file_addresses, url)).await;
            let (last, content): (String, Bytes) = fetched?;
            app.0.files.create(org, name.unwrap_or(&last), content).await?
        }
    };
    let mut reference = stored.reference();
    if let (FileSource::File { .. }, Some(name)) = (source, name) {
        reference.name = file::plain_name(name, &reference.media_type);
        reference.path = sandbox_path(reference.file_id, &reference.name);
    }
    Ok(reference)
}

async fn named(app: &App, org: OrgId, file: FileId) -> Result<StoredFile> {
    match app.0.store.begin(org).await?.file(file).await {
        Err(store::Error::NotFound) => Err(ApiError::invalid("source", "the organization has no such file")),
        found => Ok(found?),
    }
}

/// Records that a session uses the files of parts that it gets in the same transaction.
pub(super) async fn use_files(unit: &mut Unit, session: SessionId, content: &[Content]) -> Result<()> {
    let files: Vec<_> = files_of(content).map(|file| file.file_id).collect();
    if files.is_empty() {
        return Ok(());
    }
    match unit.tx().use_files(session, &files).await {
        Ok(count) if count <= SESSION_FILES_MAX => Ok(()),
        Ok(_) => {
            let words = format!("a session has at most {SESSION_FILES_MAX} files in its messages");
            Err(ApiError { param: Some("content".to_owned()), ..ApiError::conflict("too_many_files", words) })
        }
        Err(store::Error::Conflict(constraint)) if constraint == "session_file_exists" => {
            Err(ApiError::invalid("content", "a file was deleted"))
        }
        Err(error) => Err(error.into()),
    }
}
