//! Deletion of what is past its time and is more than rows: sessions, and rows with a blob.
//!
//! Each function works on one page. What cannot be deleted is skipped, and tried again by the next scan. So is the rest of a
//! page when the blob store does not answer: it is asked a few times, and not once for each blob.

use std::{
    fmt::Debug,
    future::ready,
    slice,
    sync::atomic::{AtomicBool, Ordering},
};

use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{Error, Journal, operation::operation_blob};
use crate::{
    base::limit::{
        OBJECT_REMOVAL_TTL, RETENTION_BATCH, RETENTION_CONCURRENT_MAX, RETENTION_SESSIONS_AT_ONCE,
    },
    blob,
    domain::{Actor, decide::Stamp},
    store::{
        object,
        purge::{BlobRemoval, ScanPosition, Scanned},
    },
};

/// Result of the deletion of a page. What is claimed to be deleted needs no position.
#[derive(Clone, Copy, Debug)]
pub struct Page<P = ScanPosition> {
    pub deleted: usize,
    /// Position after which the next page begins; `None` if this was the last one.
    pub next: Option<P>,
    /// The blob store did not answer: the next page can wait.
    pub is_unanswered: bool,
}

impl<P> Page<P> {
    fn of(deleted: Deleted, positions: impl ExactSizeIterator<Item = P>) -> Self {
        let is_last = (positions.len() as i64) < RETENTION_BATCH;
        let Deleted { count, is_unanswered } = deleted;
        Self { deleted: count, next: positions.last().filter(|_| !is_last), is_unanswered }
    }
}

impl Journal {
    /// Deletes archived sessions whose organization's retention period is over, several of an organization
    /// in one transaction.
    pub async fn delete_expired_sessions(&self, after: Option<ScanPosition>) -> Result<Page, Error> {
        let page = self.store.expired_sessions(after, RETENTION_BATCH).await?;
        let batches: Vec<_> = page
            .chunk_by(|one, next| one.org == next.org)
            .flat_map(|of_org| of_org.chunks(RETENTION_SESSIONS_AT_ONCE))
            .map(<[Scanned]>::to_vec)
            .collect();
        let deleted = each(batches, |batch| self.delete_expired_batch(batch)).await;
        Ok(Page::of(deleted, page.iter().map(|one| one.position)))
    }

    /// Deletes sessions of one organization in one transaction; if that fails, each in its own.
    async fn delete_expired_batch(&self, batch: Vec<Scanned>) -> Result<usize, Error> {
        let failed = match self.delete_expired_together(&batch).await {
            Err(error) if batch.len() > 1 => error,
            outcome => return outcome,
        };
        tracing::debug!(error = %failed, "sessions past their time could not be deleted together");
        let mut deleted = 0;
        for one in &batch {
            deleted += self.delete_expired_together(slice::from_ref(one)).await.unwrap_or_else(|error| {
                tracing::warn!(%error, ?one, "a session past its time could not be deleted; retrying");
                0
            });
        }
        Ok(deleted)
    }

    async fn delete_expired_together(&self, sessions: &[Scanned]) -> Result<usize, Error> {
        let Some(first) = sessions.first() else { return Ok(0) };
        let stamp = Stamp { actor: Actor::system(), origin: self.origin.clone() };
        let ids: Vec<_> = sessions.iter().map(|one| one.session).collect();
        let mut unit = self.begin(first.org).await?;
        let deleted = unit.delete_expired(&ids, &stamp).await?;
        unit.commit().await?;
        Ok(deleted)
    }

    /// Removes the blobs of deleted sessions.
    pub async fn remove_purged_blobs(
        &self,
        removal: BlobRemoval,
        after: Option<ScanPosition>,
    ) -> Result<Page, Error> {
        let page = self.store.purged_session_blobs(removal, after, RETENTION_BATCH).await?;
        let deleted = each(page.clone(), |one| async move {
            self.remove_blobs(one.org, one.session).await?;
            self.store.blobs_removed(removal, one.org, one.session).await?;
            Ok(1)
        })
        .await;
        Ok(Page::of(deleted, page.iter().map(|one| one.position)))
    }

    /// Deletes objects to which nothing refers, after their blobs.
    pub async fn delete_unused_objects(&self) -> Result<Page<()>, Error> {
        let began = Instant::now();
        let page = self.store.claim_unused_objects(RETENTION_BATCH).await?;
        let deleted = each(page.clone(), |one| async move {
            // When the claim has ended, an upload may store the blob again. The rest is more than a deletion may take.
            if began.elapsed() >= OBJECT_REMOVAL_TTL / 2 {
                return Ok(0);
            }
            self.blobs.delete(&object::key(one.org, &one.digest)).await?;
            let is_deleted = self.store.delete_object(&one).await?;
            if !is_deleted {
                // This process stood still between the look at the clock and the deletion.
                tracing::error!(org.id = %one.org, "an object was taken over while its blob was deleted");
            }
            Ok(usize::from(is_deleted))
        })
        .await;
        Ok(Page::of(deleted, page.iter().map(|_| ())))
    }

    /// Deletes operations older than `OPERATION_HOURS`, with the files of their callers.
    pub async fn delete_old_operations(&self, after: Option<ScanPosition>) -> Result<Page, Error> {
        let page = self.store.old_operations(after, RETENTION_BATCH).await?;
        let deleted = each(page.clone(), |one| async move {
            self.blobs.delete(&operation_blob(one.org, one.session, one.operation)).await?;
            self.store.delete_operation(one.org, one.session, one.operation).await?;
            Ok(1)
        })
        .await;
        Ok(Page::of(deleted, page.iter().map(|one| one.position)))
    }
}

/// Result of the deletions of a page.
struct Deleted {
    count: usize,
    /// The blob store did not answer, and the rest was not tried.
    is_unanswered: bool,
}

/// Deletes several at the same time; `delete` returns how many it deleted.
async fn each<T, F>(page: Vec<T>, delete: impl Fn(T) -> F) -> Deleted
where
    T: Clone + Debug,
    F: Future<Output = Result<usize, Error>>,
{
    let is_unanswered = AtomicBool::new(false);
    let deleting = stream::iter(page).map(|one| {
        let deleting = delete(one.clone());
        let is_unanswered = &is_unanswered;
        async move {
            if is_unanswered.load(Ordering::Relaxed) {
                return 0;
            }
            deleting.await.unwrap_or_else(|error| {
                is_unanswered.fetch_or(matches!(error, Error::Blob(blob::Error::Timeout)), Ordering::Relaxed);
                tracing::warn!(%error, ?one, "something past its time could not be deleted; retrying");
                0
            })
        }
    });
    let deleting = deleting.buffer_unordered(RETENTION_CONCURRENT_MAX);
    let count = deleting.fold(0, |deleted, more| ready(deleted + more)).await;
    Deleted { count, is_unanswered: is_unanswered.into_inner() }
}
