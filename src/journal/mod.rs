//! The only egress socket through which the log is written.
//!
//! Callers' commands come through a [`Unit`]: one transaction in which the session
//! is locked, decided on and written back; new sessions of one organization that are
//! asked for at the same time share it. A leased turn comes through
//! [`Writer::record`]: one fenced statement, which turns of one process that write
//! at the same time share. Notifications leave after the commit.

mod append_batch;
mod committer;
mod create_batch;
mod export;
mod log_cache;
mod log_writer;
mod meter;
mod operation;
mod parents;
mod read;
mod spill;
mod unit;

use tokio_util::task::TaskTracker;

use crate::{
    base::{Origin, Timestamp},
    blob::Blobs,
    domain::{OrgId, SessionId, decide::Rejection},
    store::{self, Store, event::Packed, notification::Notifications},
};

use append_batch::RecordCommitter;
use log_cache::LogCache;

pub use create_batch::{CreationCommitter, Decide, Request};
pub use export::Export;
pub use log_cache::{Log, LogSize};
pub use log_writer::{Halted, Writer};
pub use operation::operation_blob;
pub use unit::{Executed, Prepared, Unit};

/// The journal of a process. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    pub(crate) store: Store,
    blobs: Blobs,
    notifications: Notifications,
    origin: Origin,
    /// What is being written together.
    committer: TaskTracker,
    record_committer: RecordCommitter,
    log_cache: LogCache,
}

/// Why a command did not become events.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The session's state forbids it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Blob(#[from] crate::blob::Error),
}

impl Journal {
    /// A journal over one database and one blob store.
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
            log_cache: LogCache::default(),
        }
    }

    /// Waits until every write that was begun is done or refused.
    pub async fn drained(&self) {
        self.committer.close();
        self.committer.wait().await;
    }

    /// Forgets logs of turns that ended a while ago.
    pub fn expire_cached_logs(&self) {
        self.log_cache.forget_old();
    }

    /// Begins a unit of work for one organization.
    pub async fn begin(&self, org: OrgId) -> Result<Unit, Error> {
        Ok(Unit::new(self.clone(), self.store.begin_command(org).await?))
    }

    /// Tells that a log grew by `events` behind the `seq` of `base`.
    fn tell_growth(&self, session: SessionId, base: i64, ts: Timestamp, events: &[Packed]) {
        let entries = || (base + 1..).zip(events).map(|(seq, event)| event.entry(session, seq, ts)).collect();
        self.notifications.grew(session, entries);
    }

    /// Where time and ids come from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}
