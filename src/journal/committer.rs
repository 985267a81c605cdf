//! Group commit: writes of one line that come while another is under way leave together.
//!
//! Nobody waits for batch: what comes while nothing is being written is written at
//! once, and what comes while something is leaves together with the next batch. A batch
//! is a task of its own, so one whose caller is gone does not take its batch with it.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::base::limit::{COMMIT_SLOW, COMMITTERS_MAX};

/// What is written, and how.
pub(super) trait Batcher: Send + Sync + Sized + 'static {
    /// What may be written together.
    type Key: Copy + Eq + Hash + Send;
    /// One write that waits.
    type Entry: Send;

    /// Takes the oldest of what waits and what goes with it; something, if anything waits.
    fn take_batch(waiting: &mut VecDeque<Self::Entry>) -> Vec<Self::Entry>;

    /// Writes them down and tells each what became of it.
    fn write(
        committer: Committer<Self>,
        line: Self::Key,
        batch: Vec<Self::Entry>,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// The batches of a process that carry the same. Cheap to clone.
pub(super) struct Committer<C: Batcher>(Arc<Inner<C>>);

struct Inner<C: Batcher> {
    batcher: C,
    pending: Mutex<HashMap<C::Key, Pending<C::Entry>>>,
    tasks: TaskTracker,
}

/// What waits of a line, and how many batches of it are under way.
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
    /// Batches whose tasks `tasks` tracks.
    pub(super) fn of(batcher: C, tasks: TaskTracker) -> Self {
        Self(Arc::new(Inner { batcher, pending: Mutex::default(), tasks }))
    }

    pub(super) fn batcher(&self) -> &C {
        &self.0.batcher
    }

    /// Has an item written, together with whatever else waits.
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

    /// Does something beside the batches.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(work);
    }

    /// Writes what waits until nothing does.
    async fn run(self, line: C::Key) {
        while let Some(batch) = self.next_batch(line) {
            let committer = self.0.tasks.spawn(C::write(self.clone(), line, batch));
            // One that waits for somebody goes on by itself, and its place is free. One that
            // fails has told nobody, and they see that.
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
        self.0.pending.lock().expect("no holder of the desks panics")
    }
}
