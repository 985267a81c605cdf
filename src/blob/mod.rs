//! Large bytes outside the database: spilled bodies now, checkpoints later.
//!
//! Called by `journal` (spill), `http` and `worker` (read). Keys begin with the
//! tenant and the session, so that a session's blobs go with it.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt, local::LocalFileSystem, path::Path as Key};

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
pub struct Blobs(Arc<dyn ObjectStore>);

impl Blobs {
    /// Blobs below a local directory, which is made when absent.
    pub fn local(directory: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(directory).map_err(|error| Error::Unavailable(error.to_string()))?;
        let store = LocalFileSystem::new_with_prefix(directory)?.with_automatic_cleanup(true);
        Ok(Self(Arc::new(store)))
    }

    /// Stores a blob, replacing an equal key.
    pub async fn put(&self, key: &str, content: Bytes) -> Result<(), Error> {
        self.0.put(&Key::from(key), content.into()).await?;
        Ok(())
    }

    /// Removes every blob whose key begins with `prefix` and a slash.
    pub async fn remove_all(&self, prefix: &str) -> Result<(), Error> {
        let mut found = self.0.list(Some(&Key::from(prefix)));
        while let Some(blob) = found.next().await {
            match self.0.delete(&blob?.location).await {
                // Another was faster.
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads a whole blob.
    pub async fn get(&self, key: &str) -> Result<Bytes, Error> {
        Ok(self.0.get(&Key::from(key)).await?.bytes().await?)
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
