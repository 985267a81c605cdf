//! Blob store for large bytes outside the database: spilled bodies, checkpoints, objects.
//!
//! Called by `journal` (spill), `http` and `operation` (read), for checkpoints by `sandbox`, and for objects by
//! `snapshot`. A key begins with the organization and the session, so that deleting a session can remove its blobs by
//! prefix; sessions share the objects of their organization, whose keys have `objects` instead of the session.

use std::{
    fs::{self, File},
    future::ready,
    io::{self, Seek},
    ops::Range,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use object_store::{
    GetResult, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, aws::AmazonS3Builder,
    buffered::BufWriter, local::LocalFileSystem, path::Path as Key, prefix::PrefixStore,
};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    time::timeout,
};
use uuid::Uuid;

use crate::base::limit::{BLOB_TIMEOUT, OBJECT_PART_BYTES, OBJECT_PARTS_AT_ONCE};

/// Key of the id of the store.
const ID_KEY: &str = "store-id";

/// Bytes of a file per read; each read is a job on another thread.
const COPY_BYTES: usize = 1 << 20;

/// A blob could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The blob does not exist.
    #[error("the blob does not exist")]
    NotFound,
    /// The store does not answer; retry.
    #[error("the blob store did not answer within {} s", BLOB_TIMEOUT.as_secs())]
    Timeout,
    /// The store failed; retry.
    #[error("the blob store is not available: {0}")]
    Unavailable(String),
}

/// Blob store handle; cheap to clone.
#[derive(Clone)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    /// Directory for temporary files of uploads and downloads.
    scratch: PathBuf,
    /// The directory of the blobs, if they are stored locally.
    directory: Option<PathBuf>,
}

impl Blobs {
    /// Opens blobs in a local directory, which is created if absent.
    pub fn local(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory)?;
        let scratch = directory.with_extension("scratch");
        fs::create_dir_all(&scratch)?;
        // A row names a blob, so its bytes must be as durable as the row.
        let store =
            LocalFileSystem::new_with_prefix(directory)?.with_automatic_cleanup(true).with_fsync(true);
        let directory = Some(directory.to_owned());
        Ok(Self { store: Arc::new(store), scratch, directory })
    }

    /// Opens blobs in an S3-compatible bucket: `s3://bucket/prefix`.
    ///
    /// `options` are AWS settings by their environment names, such as `AWS_ENDPOINT_URL`.
    pub fn s3(url: &str, options: &[(String, String)], scratch: &Path) -> Result<Self, Error> {
        let place = url.strip_prefix("s3://").unwrap_or_default();
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
        for (name, value) in options {
            // The AWS tools also have settings that do not apply to a bucket.
            if let Ok(name) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(name, value);
            }
        }
        let store: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(builder.build()?, prefix));
        fs::create_dir_all(scratch)?;
        Ok(Self { store, scratch: scratch.to_owned(), directory: None })
    }

    /// Whether the blobs are on a disk of this machine.
    pub fn is_local(&self) -> bool {
        self.directory.is_some()
    }

    /// Stores a blob durably; replaces an existing one with the same key.
    pub async fn put(&self, key: &str, content: Bytes) -> Result<(), Error> {
        let key = Key::from(key);
        limited(self.store.put(&key, content.into())).await?;
        Ok(())
    }

    /// Stores a large blob durably, in parts for which it waits apart; replaces an existing one with the same key.
    pub async fn put_parts(&self, key: &str, content: Bytes) -> Result<(), Error> {
        let mut upload = limited(self.store.put_multipart(&Key::from(key))).await?;
        let stored = upload_parts(&mut *upload, &content).await;
        if stored.is_err() {
            // A partial upload would occupy space forever.
            let _ = limited(upload.abort()).await;
        }
        stored
    }

    /// Removes every blob whose key begins with `prefix` and a slash.
    ///
    /// Also removes the partial files of a process that crashed during a write.
    pub async fn remove_all(&self, prefix: &str) -> Result<(), Error> {
        let found = self.store.list(Some(&Key::from(prefix))).map_ok(|blob| blob.location);
        let mut removed = self.store.delete_stream(found.boxed());
        loop {
            match limited(removed.try_next()).await {
                // Another process removed it first.
                Ok(Some(_)) | Err(Error::NotFound) => {}
                Ok(None) => break,
                Err(error) => return Err(error),
            }
        }
        // The listing contains only complete files; an otherwise empty directory was removed with
        // its last file.
        let Some(directory) = &self.directory else { return Ok(()) };
        match tokio::fs::remove_dir_all(directory.join(prefix)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the id of this store; `None` if it has none yet.
    pub async fn id(&self) -> Result<Option<Uuid>, Error> {
        match self.get(ID_KEY).await {
            Ok(text) => parse_id(&text).map(Some),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives this store an id, unless another process has. Returns the one that it has.
    pub async fn create_id(&self, id: Uuid) -> Result<Uuid, Error> {
        let text = || id.to_string().into_bytes().into();
        let key = Key::from(ID_KEY);
        let put = async {
            match self.store.put_opts(&key, text(), PutMode::Create.into()).await {
                Ok(_)
                | Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    Ok(true)
                }
                // A bucket without conditional writes.
                Err(object_store::Error::NotImplemented { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        if !limited(put).await? {
            self.replace_id(id).await?;
        }
        parse_id(&self.get(ID_KEY).await?)
    }

    /// Gives this store this id.
    pub async fn replace_id(&self, id: Uuid) -> Result<(), Error> {
        self.put(ID_KEY, id.to_string().into_bytes().into()).await
    }

    /// Reads a whole blob.
    pub async fn get(&self, key: &str) -> Result<Bytes, Error> {
        let key = Key::from(key);
        limited(async { self.store.get(&key).await?.bytes().await }).await
    }

    /// Reads a range of a blob, as far as the blob has it. Not one that is empty.
    ///
    /// # Errors
    /// `Unavailable` also if the range begins after the end.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, Error> {
        limited(self.store.get_range(&Key::from(key), range)).await
    }

    /// Returns the size of a blob in bytes.
    pub async fn size(&self, key: &str) -> Result<u64, Error> {
        Ok(limited(self.store.head(&Key::from(key))).await?.size)
    }

    /// Streams a blob, part by part.
    pub async fn stream(
        &self,
        key: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        Ok(self.store.get(&Key::from(key)).await?.into_stream().map_err(Error::from))
    }

    /// Creates an unnamed temporary file; it is deleted with its last handle.
    pub fn scratch(&self) -> Result<File, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.join(format!("{}-{count}", process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }

    /// Stores the content of a file atomically and durably.
    pub async fn put_file(&self, key: &str, file: File) -> Result<(), Error> {
        let mut file = BufReader::with_capacity(COPY_BYTES, tokio::fs::File::from_std(file));
        let mut writer = BufWriter::new(Arc::clone(&self.store), Key::from(key));
        match tokio::io::copy_buf(&mut file, &mut writer).await {
            Ok(_) => Ok(writer.shutdown().await?),
            Err(error) => {
                // A partial upload would occupy space forever.
                let _ = writer.abort().await;
                Err(error.into())
            }
        }
    }

    /// Opens a blob as a file, positioned at its beginning.
    ///
    /// For a local store this is the blob's own file, which was renamed into place and never
    /// changes; otherwise it is an unnamed temporary copy.
    pub async fn get_file(&self, key: &str) -> Result<File, Error> {
        let mut stream = match self.store.get(&Key::from(key)).await? {
            GetResult { payload: GetResultPayload::File(file, _), .. } => return Ok(file),
            got => got.into_stream(),
        };
        let mut file = tokio::fs::File::from_std(self.scratch()?);
        while let Some(part) = stream.try_next().await? {
            file.write_all(&part).await?;
        }
        file.flush().await?;
        let mut file = file.into_std().await;
        file.rewind()?;
        Ok(file)
    }

    /// Removes a blob, if it exists.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        match limited(self.store.delete(&Key::from(key))).await {
            Ok(()) | Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Waits for the store, for as long as a whole blob may take.
async fn limited<T>(asked: impl Future<Output = object_store::Result<T>>) -> Result<T, Error> {
    match timeout(BLOB_TIMEOUT, asked).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(Error::Timeout),
    }
}

async fn upload_parts(upload: &mut dyn MultipartUpload, content: &Bytes) -> Result<(), Error> {
    let starts = (0..content.len()).step_by(OBJECT_PART_BYTES);
    let parts = starts.map(|start| content.slice(start..content.len().min(start + OBJECT_PART_BYTES)));
    stream::iter(parts.map(|part| limited(upload.put_part(part.into()))))
        .buffer_unordered(OBJECT_PARTS_AT_ONCE)
        .try_for_each(|()| ready(Ok(())))
        .await?;
    limited(upload.complete()).await?;
    Ok(())
}

fn parse_id(text: &[u8]) -> Result<Uuid, Error> {
    Uuid::try_parse_ascii(text.trim_ascii())
        .map_err(|_| Error::Unavailable(format!("the blob {ID_KEY} does not contain an id")))
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound,
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[tokio::test]
    async fn a_file_comes_back_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::local(&directory.path().join("blobs")).unwrap();
        let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
        let mut file = blobs.scratch().unwrap();
        file.write_all(&content).unwrap();
        file.rewind().unwrap();
        blobs.put_file("a/b/c", file).await.unwrap();
        let mut back = Vec::new();
        blobs.get_file("a/b/c").await.unwrap().read_to_end(&mut back).unwrap();
        assert!(back == content);
        blobs.delete("a/b/c").await.unwrap();
        blobs.delete("a/b/c").await.unwrap();
        assert!(matches!(blobs.get_file("a/b/c").await, Err(Error::NotFound)));
        let left = |name: &str| fs::read_dir(directory.path().join(name)).unwrap().count();
        assert_eq!((left("blobs"), left("blobs.scratch")), (0, 0));
    }

    #[tokio::test]
    async fn a_blob_of_several_parts_is_read_by_ranges() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::local(&directory.path().join("blobs")).unwrap();
        let length = 2 * OBJECT_PART_BYTES + 1_000;
        let content: Bytes = (0..length).map(|at| (at % 251) as u8).collect();
        blobs.put_parts("a/b", content.clone()).await.unwrap();
        assert_eq!(blobs.size("a/b").await.unwrap(), length as u64);
        assert!(blobs.get("a/b").await.unwrap() == content);
        let part = OBJECT_PART_BYTES - 3..OBJECT_PART_BYTES + 3;
        let read = blobs.get_range("a/b", part.start as u64..part.end as u64).await.unwrap();
        assert_eq!(read, content[part]);
        let end = length as u64;
        assert_eq!(blobs.get_range("a/b", end - 4..end + 4).await.unwrap(), content[length - 4..]);
        assert!(matches!(blobs.get_range("a/b", end..end + 4).await, Err(Error::Unavailable(_))));
        assert!(matches!(blobs.get_range("a/c", 0..4).await, Err(Error::NotFound)));
        assert!(matches!(blobs.size("a/c").await, Err(Error::NotFound)));
        let left = fs::read_dir(directory.path().join("blobs/a")).unwrap().flatten();
        assert_eq!(left.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["b"]);
    }

    #[tokio::test]
    async fn all_that_is_removed_is_gone_and_what_a_crash_left_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::local(&directory.path().join("blobs")).unwrap();
        for key in ["a/b/c", "a/b/d/e", "a/bc"] {
            blobs.put(key, Bytes::from_static(b"content")).await.unwrap();
        }
        // Simulates a process that crashed while it stored `c`.
        fs::write(directory.path().join("blobs/a/b/c#1"), "cont").unwrap();
        blobs.remove_all("a/b").await.unwrap();
        blobs.remove_all("a/b").await.unwrap();
        let left = fs::read_dir(directory.path().join("blobs/a")).unwrap().flatten();
        assert_eq!(left.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["bc"]);
        assert_eq!(blobs.get("a/bc").await.unwrap(), "content");
    }
}
