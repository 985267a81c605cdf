//! Large bytes outside the database: spilled bodies, checkpoints.
//!
//! Called by `journal` (spill), `http` and `worker` (read), and for checkpoints by
//! `sandbox`. Keys begin with the organization and the session, so that a session's blobs
//! go with it.

use std::{
    fs::{self, File},
    io::{self, Seek},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use object_store::{
    GetResult, GetResultPayload, ObjectStore, ObjectStoreExt, aws::AmazonS3Builder, buffered::BufWriter,
    local::LocalFileSystem, path::Path as Key, prefix::PrefixStore,
};
use tokio::io::{AsyncWriteExt, BufReader};

/// What is read of a file at once: each read is a job of another thread.
const COPY_BYTES: usize = 1 << 20;

/// Why a blob could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such blob.
    #[error("the blob does not exist")]
    NotFound,
    /// The store did not do it; try again.
    #[error("the blob store is not available: {0}")]
    Unavailable(String),
}

/// Where blobs are kept. Cheap to clone.
#[derive(Clone)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    /// The same, where what is stored is on the disk before it is answered.
    synced: Arc<dyn ObjectStore>,
    /// For files on their way in or out.
    scratch: PathBuf,
    /// Where they are, if that is a directory.
    directory: Option<PathBuf>,
}

impl Blobs {
    /// Blobs below a local directory, which is made when absent.
    pub fn local(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory)?;
        let scratch = directory.with_extension("scratch");
        fs::create_dir_all(&scratch)?;
        let store = LocalFileSystem::new_with_prefix(directory)?.with_automatic_cleanup(true);
        let synced =
            LocalFileSystem::new_with_prefix(directory)?.with_automatic_cleanup(true).with_fsync(true);
        let directory = Some(directory.to_owned());
        Ok(Self { store: Arc::new(store), synced: Arc::new(synced), scratch, directory })
    }

    /// Blobs in a bucket of S3, or of what speaks its protocol: `s3://bucket/prefix`.
    /// `options` are settings of the AWS tools by their names, as `AWS_ENDPOINT_URL`.
    pub fn s3(url: &str, options: &[(String, String)], scratch: &Path) -> Result<Self, Error> {
        let place = url.strip_prefix("s3://").unwrap_or_default();
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
        for (name, value) in options {
            // The tools have settings of their own that are none of a bucket's.
            if let Ok(name) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(name, value);
            }
        }
        let store: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(builder.build()?, prefix));
        fs::create_dir_all(scratch)?;
        Ok(Self { synced: Arc::clone(&store), store, scratch: scratch.to_owned(), directory: None })
    }

    /// Stores a blob, replacing an equal key.
    pub async fn put(&self, key: &str, content: Bytes) -> Result<(), Error> {
        self.store.put(&Key::from(key), content.into()).await?;
        Ok(())
    }

    /// Removes every blob whose key begins with `prefix` and a slash, and what was left by
    /// a process that died while it wrote one.
    pub async fn remove_all(&self, prefix: &str) -> Result<(), Error> {
        let mut found = self.store.list(Some(&Key::from(prefix)));
        while let Some(blob) = found.try_next().await? {
            match self.store.delete(&blob.location).await {
                // Another was faster.
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A directory lists what is whole, and is gone by itself if nothing else was there.
        let Some(directory) = &self.directory else { return Ok(()) };
        match tokio::fs::remove_dir_all(directory.join(prefix)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Reads a whole blob.
    pub async fn get(&self, key: &str) -> Result<Bytes, Error> {
        Ok(self.store.get(&Key::from(key)).await?.bytes().await?)
    }

    /// A blob as it comes, part by part.
    pub async fn stream(
        &self,
        key: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + 'static, Error> {
        Ok(self.store.get(&Key::from(key)).await?.into_stream().map_err(Error::from))
    }

    /// A new file without a name: it is gone with its last handle.
    pub fn scratch(&self) -> Result<File, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.join(format!("{}-{count}", process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }

    /// Stores what a file holds, whole or not at all, and for good.
    pub async fn put_file(&self, key: &str, file: File) -> Result<(), Error> {
        let mut file = BufReader::with_capacity(COPY_BYTES, tokio::fs::File::from_std(file));
        let mut writer = BufWriter::new(Arc::clone(&self.synced), Key::from(key));
        match tokio::io::copy_buf(&mut file, &mut writer).await {
            Ok(_) => Ok(writer.shutdown().await?),
            Err(error) => {
                // A part of it would take room for ever.
                let _ = writer.abort().await;
                Err(error.into())
            }
        }
    }

    /// A blob as a file, at its beginning: its own where it lies in a directory, for it was
    /// renamed to its place and never changes there; else a copy without a name.
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

    /// Removes a blob, if it is there.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        match self.store.delete(&Key::from(key)).await.map_err(Error::from) {
            Ok(()) | Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
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
    async fn all_that_is_removed_is_gone_and_what_a_crash_left_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::local(&directory.path().join("blobs")).unwrap();
        for key in ["a/b/c", "a/b/d/e", "a/bc"] {
            blobs.put(key, Bytes::from_static(b"content")).await.unwrap();
        }
        // As a process leaves it that dies while it stores `c`.
        fs::write(directory.path().join("blobs/a/b/c#1"), "cont").unwrap();
        blobs.remove_all("a/b").await.unwrap();
        blobs.remove_all("a/b").await.unwrap();
        let left = fs::read_dir(directory.path().join("blobs/a")).unwrap().flatten();
        assert_eq!(left.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["bc"]);
        assert_eq!(blobs.get("a/bc").await.unwrap(), "content");
    }
}
