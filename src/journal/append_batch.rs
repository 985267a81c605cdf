//! Group commit of the records of leased turns.
//!
//! Called by [`super::Writer`]; calls `store::record`.

use std::collections::{HashSet, VecDeque};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::committer::{Batcher, Committer};
use crate::{
    base::limit::{APPEND_BATCH_MAX, APPEND_EVENTS_MAX},
    store::{
        Error, Result, Store,
        record::{Record, Recorded},
    },
};

/// Group committer for the records of all leased turns of a process. Cheap to clone.
#[derive(Clone)]
pub(super) struct RecordCommitter(Committer<RecordBatcher>);

struct RecordBatcher {
    store: Store,
}

struct Waiting {
    record: Record,
    answer: oneshot::Sender<(Result<Recorded>, Record)>,
}

impl RecordCommitter {
    pub(super) fn new(store: Store, tasks: TaskTracker) -> Self {
        Self(Committer::of(RecordBatcher { store }, tasks))
    }

    /// Writes a record in one batch with other waiting records. Returns the record too; `None` if the process
    /// is shutting down.
    ///
    /// If the future is dropped, the record may or may not be written, as with a statement whose
    /// reply was not read.
    pub(super) async fn record(&self, record: Record) -> (Result<Recorded>, Option<Record>) {
        let (answer, answered) = oneshot::channel();
        self.0.add((), Waiting { record, answer });
        match answered.await {
            Ok((recorded, record)) => (recorded, Some(record)),
            // The task of the batch ended with its process and sent no reply.
            Err(_) => (Err(Error::unanswered("the process is shutting down")), None),
        }
    }
}

impl Batcher for RecordBatcher {
    /// One key for all: the service's own role writes for every organization.
    type Key = ();
    type Entry = Waiting;

    fn take_batch(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
        take(waiting)
    }

    async fn write(committer: Committer<Self>, _key: (), batch: Vec<Waiting>) {
        match <[Waiting; 1]>::try_from(batch) {
            Ok([waiting]) => alone(committer, waiting).await,
            Err(batch) => together(&committer, batch).await,
        }
    }
}

async fn together(committer: &Committer<RecordBatcher>, batch: Vec<Waiting>) {
    // Those that may wake a session lock more rows, and in an order of their own; those with a snapshot write more.
    let (alone_each, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|one| one.record.is_apart());
    alone_each.into_iter().for_each(|waiting| committer.spawn(alone(committer.clone(), waiting)));
    if batch.is_empty() {
        return;
    }
    let (records, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|waiting| (waiting.record, waiting.answer)).unzip();
    let written = committer.batcher().store.record_batch(&records).await;
    for (at, (record, answer)) in records.into_iter().zip(answers).enumerate() {
        let waiting = Waiting { record, answer };
        match &written {
            Ok(rows) => match rows.get(at).cloned().flatten() {
                Some(recorded) => waiting.tell(Ok(recorded)),
                // Another transaction holds the lock on this session's row.
                None => committer.spawn(alone(committer.clone(), waiting)),
            },
            // It may have been written. Each turn re-reads its log under a new epoch.
            Err(Error::Unavailable { source, .. }) => {
                waiting.tell(Err(Error::unanswered(&source.to_string())));
            }
            // Nothing was written. One record of the batch caused the error; write each alone.
            Err(_) => committer.spawn(alone(committer.clone(), waiting)),
        }
    }
}

async fn alone(committer: Committer<RecordBatcher>, waiting: Waiting) {
    let recorded = committer.batcher().store.record(&waiting.record).await;
    waiting.tell(recorded);
}

impl Waiting {
    fn tell(self, recorded: Result<Recorded>) {
        // The turn's future may have been dropped; then nobody receives.
        let _ = self.answer.send((recorded, self.record));
    }
}

fn take(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let (mut batch, mut later) = (Vec::new(), VecDeque::new());
    let (mut sessions, mut events) = (HashSet::new(), 0);
    while let Some(next) = waiting.pop_front() {
        let count = next.record.events.len();
        let fits = batch.len() < APPEND_BATCH_MAX && events + count <= APPEND_EVENTS_MAX;
        if !batch.is_empty() && !fits {
            later.push_back(next);
            break;
        }
        // The statement accepts each session once, so a second record of the same session waits for
        // the next batch. Records of one session keep their order.
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
        let fence = Fence { org: origin.id(), session, epoch: 1, worker: Uuid::nil(), generation: 1 };
        let record = Record {
            fence,
            turn: Some(origin.id()),
            parent: None,
            ts: origin.now(),
            events,
            actions_to: None,
            steers_to: None,
            snapshot: None,
        };
        Waiting { record, answer: oneshot::channel().0 }
    }

    #[test]
    fn a_batch_takes_the_oldest_and_each_session_once() {
        let origin = Origin::system();
        let sessions: Vec<_> = (0..APPEND_BATCH_MAX + 3).map(|_| origin.id()).collect();
        let twice = [sessions[0], sessions[0]].into_iter().chain(sessions[1..].iter().copied());
        let mut waiting: VecDeque<_> = twice.map(|session| waits(&origin, session, Vec::new())).collect();
        let of = |batch: &[Waiting]| batch.iter().map(|one| one.record.fence.session).collect::<Vec<_>>();
        let first = take(&mut waiting);
        assert_eq!(of(&first), sessions[..APPEND_BATCH_MAX]);
        let second = take(&mut waiting);
        let mut rest = vec![sessions[0]];
        rest.extend(&sessions[APPEND_BATCH_MAX..]);
        assert_eq!(of(&second), rest);
        assert!(waiting.is_empty() && take(&mut waiting).is_empty());
    }
}
