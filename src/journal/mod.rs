//! The only door through which the log is written.
//!
//! Callers' commands come through a [`Unit`]: one transaction in which the session
//! is locked, decided on and written back; new sessions of one organization that are
//! asked for at the same time share it. A leased turn comes through
//! [`Writer::record`]: one fenced statement, which turns of one process that write
//! at the same time share. Hints leave after the commit.

mod family;
mod flight;
mod group;
mod meter;
mod operation;
mod read;
mod recent;
mod record;
mod scribe;
mod spill;
mod unit;
mod whole;

use tokio_util::task::TaskTracker;

use crate::{
    base::{Origin, Timestamp},
    blob::Blobs,
    domain::{OrgId, SessionId, decide::Rejection},
    store::{self, Store, event::Packed, hint::Hints},
};

use recent::Recent;
use scribe::Scribe;

pub use group::{Decide, Group, Request};
pub use operation::operation_blob;
pub use recent::{Log, Weighed};
pub use record::{Halted, Writer};
pub use unit::{Executed, Prepared, Unit};
pub use whole::Export;

/// The journal of a process. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    pub(crate) store: Store,
    blobs: Blobs,
    hints: Hints,
    origin: Origin,
    /// What is being written together.
    flights: TaskTracker,
    scribe: Scribe,
    recent: Recent,
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
    pub fn new(store: Store, blobs: Blobs, hints: Hints, origin: Origin) -> Self {
        let flights = TaskTracker::new();
        let scribe = Scribe::new(store.clone(), flights.clone());
        Self { store, blobs, hints, origin, flights, scribe, recent: Recent::default() }
    }

    /// Waits until every write that was begun is done or refused.
    pub async fn drained(&self) {
        self.flights.close();
        self.flights.wait().await;
    }

    /// Forgets logs of turns that ended a while ago.
    pub fn forget_old_logs(&self) {
        self.recent.forget_old();
    }

    /// Begins a unit of work for one organization.
    pub async fn begin(&self, org: OrgId) -> Result<Unit, Error> {
        Ok(Unit::new(self.clone(), self.store.begin_command(org).await?))
    }

    /// Tells that a log grew by `events` behind the `seq` of `base`.
    fn tell_growth(&self, session: SessionId, base: i64, ts: Timestamp, events: &[Packed]) {
        let entries = || (base + 1..).zip(events).map(|(seq, event)| event.entry(session, seq, ts)).collect();
        self.hints.grew(session, entries);
    }

    /// Where time and ids come from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}
