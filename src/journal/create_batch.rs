//! Requests of one organization that make sessions, in one transaction.
//!
//! Each is decided on for itself, one after the other, and what they make is written by
//! one statement. A request that is refused, or whose batch could not be written, is to
//! be done apart: so nobody hears of another's fault.

use std::{
    collections::{HashSet, VecDeque},
    marker::PhantomData,
};

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::{
    Error, Journal, Unit,
    committer::{Batcher, Committer},
};
use crate::{
    base::limit::CREATIONS_TOGETHER_MAX,
    domain::OrgId,
    store::{self, idempotency::Slot},
};

/// The new sessions of a process: a request ends with an answer `A`, or is refused with `E`.
/// Cheap to clone.
pub struct CreationCommitter<A, E>(Committer<CreationBatcher<A, E>>)
where
    A: Send + 'static,
    E: From<Error> + Send + 'static;

/// A request that makes one session.
pub struct Request<A, E> {
    /// Where its answer is kept.
    pub slot: Option<Slot>,
    pub decide: Box<Decide<A, E>>,
}

/// Decides on a request: makes its session in the unit and has its answer kept.
pub type Decide<A, E> = dyn for<'a> FnOnce(&'a mut Unit) -> BoxFuture<'a, Result<A, E>> + Send;

struct CreationBatcher<A, E> {
    journal: Journal,
    // What they carry goes by from one task to another.
    carries: PhantomData<fn() -> (A, E)>,
}

struct Waiting<A, E> {
    request: Request<A, E>,
    answer: oneshot::Sender<Result<Option<A>, E>>,
}

impl<A, E> CreationCommitter<A, E>
where
    A: Send + 'static,
    E: From<Error> + Send + 'static,
{
    /// Over a journal, which waits for what is under way when it is drained.
    pub fn new(journal: Journal) -> Self {
        let tasks = journal.committer.clone();
        Self(Committer::of(CreationBatcher { journal, carries: PhantomData }, tasks))
    }

    /// Does a request, together with whatever else of its organization waits. None where
    /// nothing was done, and it is to be done apart; so where its slot has an answer already.
    ///
    /// Dropped, it may be done or not, as a statement whose answer was not read.
    pub async fn create(&self, org: OrgId, request: Request<A, E>) -> Result<Option<A>, E> {
        let (answer, answered) = oneshot::channel();
        self.0.add(org, Waiting { request, answer });
        answered.await.unwrap_or_else(|_| Err(unanswered("the work on it ended before its answer")))
    }
}

impl<A, E> Batcher for CreationBatcher<A, E>
where
    A: Send + 'static,
    E: From<Error> + Send + 'static,
{
    type Key = OrgId;
    type Entry = Waiting<A, E>;

    fn take_batch(waiting: &mut VecDeque<Self::Entry>) -> Vec<Self::Entry> {
        let (mut batch, mut later, mut slots) = (Vec::new(), VecDeque::new(), HashSet::new());
        while batch.len() < CREATIONS_TOGETHER_MAX
            && let Some(next) = waiting.pop_front()
        {
            // Of two equal requests the later one finds the answer of the first.
            let slot = next.request.slot.as_ref().map(|slot| (slot.scope.clone(), slot.key.clone()));
            match slot.is_none_or(|slot| slots.insert(slot)) {
                true => batch.push(next),
                false => later.push_back(next),
            }
        }
        later.append(waiting);
        *waiting = later;
        batch
    }

    async fn write(committer: Committer<Self>, org: OrgId, batch: Vec<Self::Entry>) {
        let (requests, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|waiting| (waiting.request, waiting.answer)).unzip();
        let is_alone = requests.len() == 1;
        let told: Vec<_> = match committer.batcher().create(org, requests).await {
            Ok(done) => {
                done.into_iter().map(|done| done.or_else(|refused| alone(is_alone, refused))).collect()
            }
            // It may have been written: who asks again with the same key hears what became of it.
            Err(Error::Store(store::Error::Unavailable { source, .. })) => {
                answers.iter().map(|_| Err(unanswered(&source.to_string()))).collect()
            }
            Err(error) if is_alone => vec![Err(error.into())],
            Err(_) => answers.iter().map(|_| Ok(None)).collect(),
        };
        for (answer, told) in answers.into_iter().zip(told) {
            // A caller that went away does not listen any more.
            let _ = answer.send(told);
        }
    }
}

/// One that was refused is told so where nobody else can be at fault.
fn alone<A, E>(is_alone: bool, refused: E) -> Result<Option<A>, E> {
    if is_alone { Err(refused) } else { Ok(None) }
}

impl<A, E> CreationBatcher<A, E> {
    /// Does requests in one transaction. Of each, its answer, none where its slot has one
    /// already, or why it was refused.
    async fn create(
        &self,
        org: OrgId,
        requests: Vec<Request<A, E>>,
    ) -> Result<Vec<Result<Option<A>, E>>, Error> {
        let mut unit = self.journal.begin(org).await?.shared();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            unit.begin_next(request.slot).await?;
            let answer = (request.decide)(&mut unit).await;
            if answer.is_err() {
                unit.leave_out();
            }
            answers.push(answer);
        }
        let mut made = unit.commit_together().await?.into_iter();
        let mut of = |answer: A| made.next().unwrap_or_default().then_some(answer);
        Ok(answers.into_iter().map(|answer| answer.map(&mut of)).collect())
    }
}

fn unanswered<E: From<Error>>(reason: &str) -> E {
    Error::Store(store::Error::unanswered(reason)).into()
}
