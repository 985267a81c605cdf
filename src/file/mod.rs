//! Files for models and sandboxes: what they are, the images that models get, where their bytes are.
//!
//! Called by `http` for uploads and for files of messages, and by `turn` for a tool that reads an image and for the
//! requests of a turn. A file is never changed. Its row exists before its bytes,
//! so that none are left behind, and is used or kept only after them.

mod fetch;
mod image;

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use metrics::counter;

use crate::{
    base::{
        Origin,
        limit::{
            FILE_BYTES_MAX, FILE_NAME_BYTES_MAX, FILES_READ_AT_ONCE, IMAGES_DECODED_AT_ONCE,
            ORG_FILES_BYTES_MAX, SESSION_FILES_OF_TOOLS_MAX,
        },
        seal::sha256,
        shares::Shares,
        text::{self, hex},
    },
    blob::{self, Blobs},
    domain::{
        FileId, OrgId, SessionId,
        content::{Content, SentAs},
        media_type::{self, is_image},
    },
    store::{
        self, Store,
        file::{StoredFile, content_key, image_key},
    },
};

pub use fetch::fetch;

/// A file could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be accepted as it is.
    #[error("{0}")]
    Refused(String),
    /// The organization has too many bytes of files.
    #[error("the files of the organization would have more than {} GiB; delete some", ORG_FILES_BYTES_MAX >> 30)]
    Full,
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Blob(#[from] blob::Error),
}

/// The stored files of all organizations. Cheap to clone.
#[derive(Clone)]
pub struct Files {
    store: Store,
    blobs: Blobs,
    origin: Origin,
    decoding: Arc<Shares<OrgId>>,
}

impl Files {
    /// Creates access to the files of a process.
    pub fn new(store: Store, blobs: Blobs, origin: Origin) -> Self {
        let (at_once, per_org) = IMAGES_DECODED_AT_ONCE;
        Self { store, blobs, origin, decoding: Arc::new(Shares::new(at_once, per_org)) }
    }

    /// Stores a file. An image that models cannot take as it is gets a form that they can take.
    ///
    /// The file is deleted after `FILE_UNUSED_AFTER`, unless it is kept or a session uses it by then. So nothing is left of
    /// one whose request fails.
    ///
    /// # Errors
    /// `Refused` for an empty file, one that is too large, or an image that cannot be decoded; `Full`.
    pub async fn create(&self, org: OrgId, name: &str, content: Bytes) -> Result<StoredFile, Error> {
        if content.is_empty() {
            return Err(Error::Refused("the file is empty".to_owned()));
        }
        if content.len() > FILE_BYTES_MAX {
            return Err(Error::Refused(format!("a file may have at most {} MiB", FILE_BYTES_MAX >> 20)));
        }
        let media_type = media_type::of(&content);
        let (image, converted) = match is_image(media_type) {
            true => {
                self.prepare_image(org, content.clone()).await.map(|(image, bytes)| (Some(image), bytes))?
            }
            false => (None, None),
        };
        let file = StoredFile {
            id: self.origin.id(),
            name: plain_name(name, media_type),
            media_type: media_type.to_owned(),
            bytes: content.len() as u64,
            sha256: hex(&sha256(&content)),
            image,
            kept: false,
            created_at: self.origin.now(),
        };
        let mut tx = self.store.begin(org).await?;
        if tx.file_bytes().await? + file.bytes > ORG_FILES_BYTES_MAX {
            return Err(Error::Full);
        }
        tx.insert_file(&file).await?;
        tx.commit().await?;
        if let Some(converted) = converted {
            self.blobs.put(&image_key(org, file.id), converted).await?;
        }
        self.blobs.put(&content_key(org, file.id), content).await?;
        counter!("sojourn_files_total", "type" => media_type).increment(1);
        counter!("sojourn_file_bytes_total").increment(file.bytes);
        Ok(file)
    }

    /// Stores a file that a tool of a session read. One with equal bytes that the session has is returned instead.
    ///
    /// # Errors
    /// As for [`Files::create`].
    pub async fn create_for_session(
        &self,
        org: OrgId,
        session: SessionId,
        name: &str,
        content: Bytes,
    ) -> Result<StoredFile, Error> {
        let digest = hex(&sha256(&content));
        if let Some(same) = self.store.begin(org).await?.session_file_by_digest(session, &digest).await? {
            return Ok(same);
        }
        let file = self.create(org, name, content).await?;
        let mut tx = self.store.begin(org).await?;
        if tx.use_files(session, &[file.id]).await? > SESSION_FILES_OF_TOOLS_MAX {
            return Err(Error::Refused("the session has too many files".to_owned()));
        }
        tx.commit().await?;
        Ok(file)
    }

    #[expect(clippy::disallowed_methods, reason = "awaited at once")]
    async fn prepare_image(&self, org: OrgId, content: Bytes) -> Result<image::Prepared, Error> {
        let place = self.decoding.take(Some(org)).await;
        let prepared = tokio::task::spawn_blocking(move || {
            // Held until the end of the work, which a caller that is gone does not stop.
            let _place = place;
            image::prepare(&content)
        })
        .await;
        prepared
            .map_err(|_| Error::Refused("the image cannot be decoded".to_owned()))?
            .map_err(|error| Error::Refused(error.to_string()))
    }

    /// Streams the bytes of a file.
    pub async fn stream(
        &self,
        org: OrgId,
        file: FileId,
    ) -> Result<impl futures::Stream<Item = Result<Bytes, blob::Error>> + Send + use<>, Error> {
        let key = content_key(org, file);
        Ok(self.blobs.stream(&key).await?)
    }

    /// Reads the bytes of a file; `None` if they are gone.
    pub async fn content(&self, org: OrgId, file: FileId) -> Result<Option<Bytes>, Error> {
        self.read(&content_key(org, file)).await
    }

    /// Reads the files of parts in the form in which a model gets them. One that is gone is missing.
    pub async fn for_model(&self, org: OrgId, parts: Vec<Content>) -> Result<HashMap<FileId, Bytes>, Error> {
        let keys: HashMap<_, _> = parts
            .iter()
            .filter_map(|part| {
                let (file, sent_as) = part.sent_as()?;
                let is_converted = file.image.as_ref().is_some_and(|image| image.converted);
                let key = match sent_as {
                    SentAs::Image if is_converted => image_key(org, file.file_id),
                    SentAs::Image | SentAs::Pdf | SentAs::Text => content_key(org, file.file_id),
                    SentAs::Path => return None,
                };
                Some((file.file_id, key))
            })
            .collect();
        let reads = stream::iter(keys).map(|(file, key)| async move {
            Ok::<_, Error>(self.read(&key).await?.map(|content| (file, content)))
        });
        reads.buffer_unordered(FILES_READ_AT_ONCE).try_filter_map(async |read| Ok(read)).try_collect().await
    }

    async fn read(&self, key: &str) -> Result<Option<Bytes>, Error> {
        match self.blobs.get(key).await {
            Ok(content) => Ok(Some(content)),
            Err(blob::Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the last part of a path as the name of a file in one directory of a sandbox.
pub fn plain_name(name: &str, media_type: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let printable: String = last.chars().filter(|char| !char.is_control()).collect();
    let name = text::truncate(printable.trim(), FILE_NAME_BYTES_MAX);
    if matches!(name, "" | "." | "..") {
        format!("file.{}", media_type::extension(media_type))
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_a_path() {
        for (given, name) in [
            ("photo.png", "photo.png"),
            ("/etc/passwd", "passwd"),
            ("..\\..\\a.txt", "a.txt"),
            ("a/..", "file.png"),
            ("", "file.png"),
            (" a\nb\u{7f}.png ", "ab.png"),
        ] {
            assert_eq!(plain_name(given, "image/png"), name, "{given:?}");
        }
        assert!(plain_name(&"é".repeat(300), "image/png").len() <= FILE_NAME_BYTES_MAX);
    }
}
