//! Skills of organizations: reading their archives, and where their bytes are.
//!
//! Called by `http` for uploads, and by `lifecycle`, which writes them to sandboxes. A version never changes. Its row exists
//! before its bytes, so that none are left behind, and has a number only after them.

mod archive;

use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;

use crate::{
    base::{
        Origin,
        limit::{ORG_SKILLS_BYTES_MAX, SKILL_BYTES_MAX, SKILLS_READ_AT_ONCE},
        shares::Shares,
    },
    blob::{self, Blobs},
    domain::{OrgId, SkillId},
    store::{
        self, Store,
        skill::{NewSkill, content_key},
    },
};

pub use archive::SkillArchive;

/// Zero bytes at the end of an archive.
const TRAILER_BYTES: usize = 1_024;

/// A skill could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive cannot be accepted as it is.
    #[error("{0}")]
    Refused(String),
    /// The organization has too many bytes of skills.
    #[error("the skills of the organization would have more than {} GiB; delete some", ORG_SKILLS_BYTES_MAX >> 30)]
    Full,
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Blob(#[from] blob::Error),
}

/// The skills of all organizations. Cheap to clone.
#[derive(Clone)]
pub struct Skills {
    store: Store,
    blobs: Blobs,
    origin: Origin,
    reading: Arc<Shares<OrgId>>,
}

impl Skills {
    /// Creates access to the skills of a process.
    pub fn new(store: Store, blobs: Blobs, origin: Origin) -> Self {
        let (at_once, per_org) = SKILLS_READ_AT_ONCE;
        Self { store, blobs, origin, reading: Arc::new(Shares::new(at_once, per_org)) }
    }

    /// Reads an archive of one folder.
    ///
    /// # Errors
    /// `Refused` with what is wrong.
    #[expect(clippy::disallowed_methods, reason = "awaited at once")]
    pub async fn read(&self, org: OrgId, content: Bytes) -> Result<SkillArchive, Error> {
        if content.len() > SKILL_BYTES_MAX {
            return Err(Error::Refused(format!("a skill may have at most {} MiB", SKILL_BYTES_MAX >> 20)));
        }
        let place = self.reading.take(Some(org)).await;
        let read = tokio::task::spawn_blocking(move || {
            // Held until the end of the work, which a caller that is gone does not stop.
            let _place = place;
            archive::read(&content)
        });
        read.await.unwrap_or_else(|_| Err("the archive cannot be read".to_owned())).map_err(Error::Refused)
    }

    /// Stores the bytes of a version that has no number yet. Without one it is deleted after `FILE_UNUSED_AFTER`, so that
    /// nothing is left of a request that fails.
    ///
    /// # Errors
    /// `Full`.
    pub async fn store(&self, org: OrgId, archive: SkillArchive) -> Result<SkillId, Error> {
        let SkillArchive { name, description, files, sha256, content } = archive;
        let bytes = content.len() as u64;
        let created_at = self.origin.now();
        let skill = NewSkill { id: self.origin.id(), name, description, sha256, bytes, files, created_at };
        let mut tx = self.store.begin(org).await?;
        if tx.skill_bytes().await? + bytes > ORG_SKILLS_BYTES_MAX {
            return Err(Error::Full);
        }
        tx.insert_skill(&skill).await?;
        tx.commit().await?;
        self.blobs.put(&content_key(org, skill.id), content).await?;
        Ok(skill.id)
    }

    /// Streams the archive of a version, whose paths begin with its name.
    pub async fn stream(
        &self,
        org: OrgId,
        skill: SkillId,
    ) -> Result<impl Stream<Item = Result<Bytes, blob::Error>> + Send + use<>, Error> {
        Ok(self.blobs.stream(&content_key(org, skill)).await?)
    }

    /// Reads the archive of a version without its end, so that others can follow; `None` if it is gone.
    pub async fn entries(&self, org: OrgId, skill: SkillId) -> Result<Option<Bytes>, Error> {
        match self.blobs.get(&content_key(org, skill)).await {
            Ok(archive) => Ok(Some(archive.slice(..archive.len().saturating_sub(TRAILER_BYTES)))),
            Err(blob::Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
