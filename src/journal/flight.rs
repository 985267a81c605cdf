//! Group commit: writes of one line that come while another is under way leave together.
//!
//! Nobody waits for company: what comes while nothing is being written is written at
//! once, and what comes while something is leaves together with the next flight. A flight
//! is a task of its own, so one whose caller is gone does not take its company with it.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::base::limit::{FLIGHT_SLOW, FLIGHTS};

/// What is written, and how.
pub(super) trait Cargo: Send + Sync + Sized + 'static {
    /// What may be written together.
    type Line: Copy + Eq + Hash + Send;
    /// One write that waits.
    type Item: Send;

    /// Takes the oldest of what waits and what goes with it; something, if anything waits.
    fn load(waiting: &mut VecDeque<Self::Item>) -> Vec<Self::Item>;

    /// Writes them down and tells each what became of it.
    fn write(
        flights: Flights<Self>,
        line: Self::Line,
        batch: Vec<Self::Item>,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// The flights of a process that carry the same. Cheap to clone.
pub(super) struct Flights<C: Cargo>(Arc<Inner<C>>);

struct Inner<C: Cargo> {
    cargo: C,
    desks: Mutex<HashMap<C::Line, Desk<C::Item>>>,
    tasks: TaskTracker,
}

/// What waits of a line, and how many flights of it are under way.
struct Desk<T> {
    waiting: VecDeque<T>,
    flights: usize,
}

impl<C: Cargo> Clone for Flights<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Cargo> Flights<C> {
    /// Flights whose tasks `tasks` tracks.
    pub(super) fn of(cargo: C, tasks: TaskTracker) -> Self {
        Self(Arc::new(Inner { cargo, desks: Mutex::default(), tasks }))
    }

    pub(super) fn cargo(&self) -> &C {
        &self.0.cargo
    }

    /// Has an item written, together with whatever else waits.
    pub(super) fn add(&self, line: C::Line, item: C::Item) {
        let mut desks = self.desks();
        let desk = desks.entry(line).or_insert_with(|| Desk { waiting: VecDeque::new(), flights: 0 });
        desk.waiting.push_back(item);
        if desk.flights < FLIGHTS {
            desk.flights += 1;
            self.0.tasks.spawn(self.clone().fly(line));
        }
    }

    /// Does something beside the flights.
    pub(super) fn aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(work);
    }

    /// Writes what waits until nothing does.
    async fn fly(self, line: C::Line) {
        while let Some(batch) = self.next_batch(line) {
            let flight = self.0.tasks.spawn(C::write(self.clone(), line, batch));
            // One that waits for somebody goes on by itself, and its place is free. One that
            // fails has told nobody, and they see that.
            let _ = timeout(FLIGHT_SLOW, flight).await;
        }
    }

    fn next_batch(&self, line: C::Line) -> Option<Vec<C::Item>> {
        let mut desks = self.desks();
        let desk = desks.get_mut(&line)?;
        let batch = C::load(&mut desk.waiting);
        if batch.is_empty() {
            desk.flights -= 1;
            if desk.flights == 0 {
                desks.remove(&line);
            }
            return None;
        }
        Some(batch)
    }

    fn desks(&self) -> MutexGuard<'_, HashMap<C::Line, Desk<C::Item>>> {
        self.0.desks.lock().expect("no holder of the desks panics")
    }
}
