//! Records of many leased turns in one commit.
//!
//! Called by [`super::Writer`]; calls `store::record`. Nobody waits for company:
//! what comes while nothing is being written is written at once, and what comes while
//! something is leaves together with the next flight. A flight is a task of its own, so
//! a turn that is dropped does not take its company with it.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    base::limit::{APPEND_EVENTS_MAX, RECORD_FLIGHT_SLOW, RECORD_FLIGHTS, RECORDS_TOGETHER_MAX},
    store::{
        Error, Result, Store,
        record::{Record, Recorded},
    },
};

/// The one who writes for all leased turns of a process. Cheap to clone.
#[derive(Clone)]
pub(super) struct Scribe(Arc<Inner>);

struct Inner {
    store: Store,
    desk: Mutex<Desk>,
    flights: TaskTracker,
}

/// What waits, and how many flights are under way.
#[derive(Default)]
struct Desk {
    waiting: VecDeque<Waiting>,
    flights: usize,
}

struct Waiting {
    record: Record,
    answer: oneshot::Sender<Result<(Recorded, Record)>>,
}

impl Scribe {
    pub(super) fn new(store: Store) -> Self {
        Self(Arc::new(Inner { store, desk: Mutex::default(), flights: TaskTracker::new() }))
    }

    /// Writes a record down, together with whatever else waits. Hands the record back.
    ///
    /// Dropped, it may be written or not, as a statement whose answer was not read.
    pub(super) async fn record(&self, record: Record) -> Result<(Recorded, Record)> {
        let (answer, answered) = oneshot::channel();
        {
            let mut desk = self.desk();
            desk.waiting.push_back(Waiting { record, answer });
            if desk.flights < RECORD_FLIGHTS {
                desk.flights += 1;
                self.0.flights.spawn(self.clone().fly());
            }
        }
        // A flight that was cut off with its process has no answer.
        answered.await.unwrap_or_else(|_| Err(unanswered("the process ends")))
    }

    /// Waits until nothing is under way any more.
    pub(super) async fn drained(&self) {
        self.0.flights.close();
        self.0.flights.wait().await;
    }

    /// Writes what waits until nothing does.
    async fn fly(self) {
        while let Some(batch) = self.next_batch() {
            let mut flight = Box::pin(self.clone().write(batch));
            // A row that somebody holds delays its own session and no other: the flight
            // goes on by itself, and its place is free.
            if timeout(RECORD_FLIGHT_SLOW, &mut flight).await.is_err() {
                self.0.flights.spawn(flight);
            }
        }
    }

    /// The oldest of what waits, at most one record of each session.
    fn next_batch(&self) -> Option<Vec<Waiting>> {
        let mut desk = self.desk();
        let batch = take(&mut desk.waiting);
        if batch.is_empty() {
            desk.flights -= 1;
            return None;
        }
        Some(batch)
    }

    async fn write(self, batch: Vec<Waiting>) {
        match <[Waiting; 1]>::try_from(batch) {
            Ok([waiting]) => self.alone(waiting).await,
            Err(batch) => self.write_together(batch).await,
        }
    }

    async fn write_together(&self, batch: Vec<Waiting>) {
        let (records, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|waiting| (waiting.record, waiting.answer)).unzip();
        let written = self.0.store.record_together(&records).await;
        for (at, (record, answer)) in records.into_iter().zip(answers).enumerate() {
            let waiting = Waiting { record, answer };
            match &written {
                Ok(rows) => match rows.get(at).copied().flatten() {
                    Some(recorded) => waiting.tell(Ok(recorded)),
                    // Somebody holds its session.
                    None => self.alone_aside(waiting),
                },
                // It may have been written: each turn looks at its log under a new epoch.
                Err(Error::Unavailable { source, .. }) => waiting.tell(Err(unanswered(&source.to_string()))),
                // Nothing was written, and only one of them is at fault.
                Err(_) => self.alone_aside(waiting),
            }
        }
    }

    fn alone_aside(&self, waiting: Waiting) {
        self.0.flights.spawn(self.clone().alone(waiting));
    }

    async fn alone(self, waiting: Waiting) {
        let recorded = self.0.store.record(&waiting.record).await;
        waiting.tell(recorded);
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.desk.lock().expect("no holder of the desk panics")
    }
}

impl Waiting {
    fn tell(self, recorded: Result<Recorded>) {
        // A turn that was dropped does not listen any more.
        let _ = self.answer.send(recorded.map(|recorded| (recorded, self.record)));
    }
}

fn take(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let (mut batch, mut later) = (Vec::new(), VecDeque::new());
    let (mut sessions, mut events) = (HashSet::new(), 0);
    while let Some(next) = waiting.pop_front() {
        let count = next.record.events.len();
        let fits = batch.len() < RECORDS_TOGETHER_MAX && events + count <= APPEND_EVENTS_MAX;
        if !batch.is_empty() && !fits {
            later.push_back(next);
            break;
        }
        // Two records of one session go one after the other, as they came: the statement
        // sees each session once.
        if sessions.insert(next.record.fence.session) {
            events += count;
            batch.push(next);
        } else {
            later.push_back(next);
        }
    }
    later.append(waiting);
    *waiting = later;
    batch
}

fn unanswered(reason: &str) -> Error {
    let retry_after = Duration::from_secs(1);
    Error::unavailable(retry_after, reason)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        base::Origin,
        domain::SessionId,
        store::{event::Packed, record::Fence},
    };

    fn waits(origin: &Origin, session: SessionId, events: Vec<Packed>) -> Waiting {
        let fence = Fence { tenant: origin.id(), session, epoch: 1, worker: Uuid::nil() };
        let record = Record { fence, turn: Some(origin.id()), ts: origin.now(), events };
        Waiting { record, answer: oneshot::channel().0 }
    }

    #[test]
    fn a_flight_takes_the_oldest_and_each_session_once() {
        let origin = Origin::system();
        let sessions: Vec<_> = (0..RECORDS_TOGETHER_MAX + 3).map(|_| origin.id()).collect();
        let twice = [sessions[0], sessions[0]].into_iter().chain(sessions[1..].iter().copied());
        let mut waiting: VecDeque<_> = twice.map(|session| waits(&origin, session, Vec::new())).collect();
        let of = |batch: &[Waiting]| batch.iter().map(|one| one.record.fence.session).collect::<Vec<_>>();
        let first = take(&mut waiting);
        assert_eq!(of(&first), sessions[..RECORDS_TOGETHER_MAX]);
        let second = take(&mut waiting);
        let mut rest = vec![sessions[0]];
        rest.extend(&sessions[RECORDS_TOGETHER_MAX..]);
        assert_eq!(of(&second), rest);
        assert!(waiting.is_empty() && take(&mut waiting).is_empty());
    }
}
