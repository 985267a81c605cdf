//! Group commit: writes with one key that arrive during a write share the next batch.
//!
//! No write waits for a batch to fill. While no write is in progress, a new entry is written at
//! once. Entries that arrive during a write go into the next batch. Each batch is its own task, so
//! a caller that is dropped does not cancel the batch.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::base::limit::{COMMIT_SLOW, COMMITTERS_MAX};

/// Defines the entries of a committer and how to write a batch.
pub(super) trait Batcher: Send + Sync + Sized + 'static {
    /// Entries with equal keys may share a batch.
    type Key: Copy + Eq + Hash + Send;
    /// One pending write.
    type Entry: Send;

    /// Takes the oldest pending entry and those that fit with it. Not empty if any entry is
    /// pending.
    fn take_batch(waiting: &mut VecDeque<Self::Entry>) -> Vec<Self::Entry>;

    /// Writes a batch and sends each entry its result.
    fn write(
        committer: Committer<Self>,
        line: Self::Key,
        batch: Vec<Self::Entry>,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// Group committer of a process for one kind of entry. Cheap to clone.
pub(super) struct Committer<C: Batcher>(Arc<Inner<C>>);

struct Inner<C: Batcher> {
    batcher: C,
    pending: Mutex<HashMap<C::Key, Pending<C::Entry>>>,
    tasks: TaskTracker,
}

/// Pending entries of one key and the number of committer tasks running for it.
struct Pending<T> {
    waiting: VecDeque<T>,
    committer: usize,
}

impl<C: Batcher> Clone for Committer<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Batcher> Committer<C> {
    /// Creates a committer whose tasks are tracked by `tasks`.
    pub(super) fn of(batcher: C, tasks: TaskTracker) -> Self {
        Self(Arc::new(Inner { batcher, pending: Mutex::default(), tasks }))
    }

    pub(super) fn batcher(&self) -> &C {
        &self.0.batcher
    }

    /// Queues an entry; it is written in a batch with other pending entries.
    pub(super) fn add(&self, line: C::Key, item: C::Entry) {
        let mut pending = self.pending();
        let pending =
            pending.entry(line).or_insert_with(|| Pending { waiting: VecDeque::new(), committer: 0 });
        pending.waiting.push_back(item);
        if pending.committer < COMMITTERS_MAX {
            pending.committer += 1;
            self.0.tasks.spawn(self.clone().run(line));
        }
    }

    /// Spawns tracked work outside the batches.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(work);
    }

    /// Writes batches until no entry is pending.
    async fn run(self, line: C::Key) {
        while let Some(batch) = self.next_batch(line) {
            let committer = self.0.tasks.spawn(C::write(self.clone(), line, batch));
            // A batch that takes longer than `COMMIT_SLOW` (for example on a row lock) continues on
            // its own task, and this task takes the next batch. A batch whose task fails drops its
            // reply channels; its callers see that.
            let _ = timeout(COMMIT_SLOW, committer).await;
        }
    }

    fn next_batch(&self, line: C::Key) -> Option<Vec<C::Entry>> {
        let mut all = self.pending();
        let pending = all.get_mut(&line)?;
        let batch = C::take_batch(&mut pending.waiting);
        if batch.is_empty() {
            pending.committer -= 1;
            if pending.committer == 0 {
                all.remove(&line);
            }
            return None;
        }
        Some(batch)
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<C::Key, Pending<C::Entry>>> {
        self.0.pending.lock().expect("no code panics while it holds the pending lock")
    }
}
