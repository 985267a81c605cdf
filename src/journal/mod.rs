//! The only module that appends to the log.
//!
//! Commands of callers go through a [`Unit`]: one transaction that locks the session, decides the
//! command and writes the session back. New sessions of one organization that are requested at the
//! same time share one. A leased turn goes through [`Writer::record`]: one fenced statement,
//! which concurrent turns of one process share. Notifications are sent after the commit.

mod action;
mod append_batch;
mod children;
mod committer;
mod create_batch;
mod creation;
mod delete;
mod export;
mod fold_cache;
mod log_writer;
mod meter;
mod operation;
mod read;
mod retention;
mod segment;
mod spill;
mod steers;
mod stored_fold;
mod unit;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::{
    base::{Origin, Timestamp},
    blob::Blobs,
    domain::{SessionId, decide::Rejection},
    store::{self, Store, event::Packed, notification::Notifications},
};

use append_batch::RecordCommitter;
use fold_cache::FoldCache;

pub use action::Answered;
pub use create_batch::{AgentCache, CreationCommitter, Decide, Request};
pub use export::Export;
pub use fold_cache::ReadFold;
pub use log_writer::{AppendError, Halted, Writer};
pub use operation::operation_blob;
pub use retention::Page;
pub use unit::{Executed, Unit};

/// Journal of a process. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    pub(crate) store: Store,
    blobs: Blobs,
    notifications: Notifications,
    origin: Origin,
    /// Tasks of the group committers.
    committer: TaskTracker,
    record_committer: RecordCommitter,
    fold_cache: FoldCache,
}

/// Reasons why a command produced no events.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The session's state forbids the command.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Blob(#[from] crate::blob::Error),
}

impl Journal {
    /// Creates a journal over one database and one blob store.
    pub fn new(store: Store, blobs: Blobs, notifications: Notifications, origin: Origin) -> Self {
        let committer = TaskTracker::new();
        let record_committer = RecordCommitter::new(store.clone(), committer.clone());
        Self {
            store,
            blobs,
            notifications,
            origin,
            committer,
            record_committer,
            fold_cache: FoldCache::default(),
        }
    }

    /// Starts a write that also continues if its caller leaves.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        write: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.committer.spawn(write)
    }

    /// Waits until every write in progress has finished or failed.
    pub async fn drained(&self) {
        self.committer.close();
        self.committer.wait().await;
    }

    /// Evicts cached folds of turns that ended a while ago.
    pub fn expire_cached_folds(&self) {
        self.fold_cache.evict_old();
    }

    /// Notifies readers that `events` were appended after the `seq` of `base`.
    fn notify_growth(&self, session: SessionId, base: i64, ts: Timestamp, events: &[Packed]) {
        let entries = || (base + 1..).zip(events).map(|(seq, event)| event.entry(session, seq, ts)).collect();
        self.notifications.grew(session, entries);
    }

    /// Returns the source of time and ids.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}
