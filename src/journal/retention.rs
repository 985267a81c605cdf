//! Deletion of what is past its time and is more than rows: sessions, and rows with a blob.
//!
//! Each function works on one page. What cannot be deleted is skipped, and tried again by the next scan.

use std::{fmt::Debug, future::ready};

use futures::{StreamExt, stream};

use super::{Error, Journal, operation::operation_blob};
use crate::{
    base::limit::{RETENTION_BATCH, RETENTION_CONCURRENT_MAX},
    domain::{Actor, decide::Stamp},
    store::{self, purge::ScanPosition},
};

/// Result of the deletion of a page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub deleted: usize,
    /// Position after which the next page begins; `None` if this was the last one.
    pub next: Option<ScanPosition>,
}

impl Page {
    fn of(deleted: usize, positions: impl ExactSizeIterator<Item = ScanPosition>) -> Self {
        let is_last = (positions.len() as i64) < RETENTION_BATCH;
        Self { deleted, next: positions.last().filter(|_| !is_last) }
    }
}

impl Journal {
    /// Deletes archived sessions whose organization's retention period is over, each in its own transaction.
    pub async fn delete_expired_sessions(&self, after: Option<ScanPosition>) -> Result<Page, Error> {
        let page = self.store.expired_sessions(after, RETENTION_BATCH).await?;
        let stamp = &Stamp { actor: Actor::system(), origin: self.origin.clone() };
        let deleted = each(&page, |one| async move {
            let mut unit = self.begin(one.org).await?;
            match unit.delete(one.session, stamp, "retention").await {
                Ok(()) => unit.commit().await.map(|()| true),
                // Another worker deleted it first, or one of its descendants is open.
                Err(Error::Store(store::Error::NotFound) | Error::Rejected(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await;
        Ok(Page::of(deleted, page.iter().map(|one| one.position)))
    }

    /// Removes the blobs of deleted sessions.
    pub async fn remove_purged_blobs(&self, after: Option<ScanPosition>) -> Result<Page, Error> {
        let page = self.store.purged_session_blobs(after, RETENTION_BATCH).await?;
        let deleted = each(&page, |one| async move {
            self.remove_blobs(one.org, one.session).await?;
            self.store.blobs_removed(one.org, one.session).await?;
            Ok(true)
        })
        .await;
        Ok(Page::of(deleted, page.iter().map(|one| one.position)))
    }

    /// Deletes operations older than `OPERATION_HOURS`, with the files of their callers.
    pub async fn delete_old_operations(&self, after: Option<ScanPosition>) -> Result<Page, Error> {
        let page = self.store.old_operations(after, RETENTION_BATCH).await?;
        let deleted = each(&page, |one| async move {
            self.blobs.delete(&operation_blob(one.org, one.session, one.operation)).await?;
            self.store.delete_operation(one.org, one.session, one.operation).await?;
            Ok(true)
        })
        .await;
        Ok(Page::of(deleted, page.iter().map(|one| one.position)))
    }
}

/// Deletes several at the same time; `delete` returns whether it did. Returns how many were deleted.
async fn each<T, F>(page: &[T], delete: impl Fn(T) -> F) -> usize
where
    T: Copy + Debug,
    F: Future<Output = Result<bool, Error>>,
{
    let deleting = stream::iter(page.iter().copied()).map(|one| {
        let deleting = delete(one);
        async move {
            deleting.await.unwrap_or_else(|error| {
                tracing::warn!(%error, ?one, "something past its time could not be deleted; retrying");
                false
            })
        }
    });
    deleting
        .buffer_unordered(RETENTION_CONCURRENT_MAX)
        .fold(0, |deleted, is_deleted| ready(deleted + usize::from(is_deleted)))
        .await
}
