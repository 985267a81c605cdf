//! How a turn stops that cannot read or write its session.

use crate::{
    base::limit::{BLOB_RETRY, UNREADABLE_RETRY},
    harness::Halt,
    journal::{self, Halted},
    store,
};

pub(super) fn halt(halted: Halted) -> Halt {
    match halted {
        Halted::Stale => Halt::Stale,
        Halted::Moved => Halt::Moved,
        Halted::Failed(error) => unavailable(error),
    }
}

/// Returns how a turn whose session cannot be read or written stops.
///
/// Its slot waits for the database, which every turn needs. It does not wait for the blob store, which other
/// turns may not need, or for a row that this version cannot read.
pub(crate) fn unavailable(error: impl Into<journal::Error>) -> Halt {
    let error = error.into();
    let delay = match &error {
        journal::Error::Blob(_) => BLOB_RETRY,
        journal::Error::Store(store::Error::Corrupt(_) | store::Error::Database(_)) => UNREADABLE_RETRY,
        journal::Error::Store(_) | journal::Error::Rejected(_) => {
            return Halt::Unavailable(error.to_string());
        }
    };
    tracing::error!(%error, delay_seconds = delay.as_secs(), "a turn cannot continue; its slot is released");
    Halt::Wait(delay)
}
