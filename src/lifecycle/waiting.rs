//! Number of sessions of a process that wait for capacity for a sandbox.

use std::sync::Arc;

use tokio::sync::watch;

/// Counts the sessions that wait. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Waiting(Arc<watch::Sender<usize>>);

/// One session that waits, until it is dropped.
pub(super) struct Counted(Waiting);

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Waiting {
    /// Number of sessions that wait now.
    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// A receiver of the number whenever it changes.
    pub(crate) fn changes(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    /// Counts a session as waiting until the returned guard is dropped.
    pub(super) fn begin(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
