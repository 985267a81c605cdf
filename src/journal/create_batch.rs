//! Group commit of the requests of one organization that create sessions.
//!
//! Each request is decided separately, one after the other. One statement writes all their sessions
//! in one transaction. A request that is rejected, or whose batch could not be written, must be
//! executed alone by its caller, so an error reaches only the request that caused it.

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
    base::limit::CREATION_BATCH_MAX,
    domain::OrgId,
    store::{self, idempotency::Slot},
};

/// Group committer for new sessions. A request returns `A` or fails with `E`. Cheap to clone.
pub struct CreationCommitter<A, E>(Committer<CreationBatcher<A, E>>)
where
    A: Send + 'static,
    E: From<Error> + Send + 'static;

/// A request that creates one session.
pub struct Request<A, E> {
    /// The idempotency slot that stores its response.
    pub slot: Option<Slot>,
    pub decide: Box<Decide<A, E>>,
}

/// Decides a request: creates its session in the unit and stores its response.
pub type Decide<A, E> = dyn for<'a> FnOnce(&'a mut Unit) -> BoxFuture<'a, Result<A, E>> + Send;

struct CreationBatcher<A, E> {
    journal: Journal,
    // `A` and `E` pass between tasks but are never stored here.
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
    /// Creates a committer whose batches [`Journal::drained`] waits for.
    pub fn new(journal: Journal) -> Self {
        let tasks = journal.committer.clone();
        Self(Committer::of(CreationBatcher { journal, carries: PhantomData }, tasks))
    }

    /// Executes a request in one batch with other pending requests of its organization.
    ///
    /// Returns `None` when nothing was done and the caller must execute the request alone. This
    /// includes a request whose slot already has a response.
    ///
    /// If the future is dropped, the request may or may not be executed, as with a statement whose
    /// reply was not read.
    pub async fn create(&self, org: OrgId, request: Request<A, E>) -> Result<Option<A>, E> {
        let (answer, answered) = oneshot::channel();
        self.0.add(org, Waiting { request, answer });
        answered.await.unwrap_or_else(|_| Err(unanswered("the task of the batch ended before it replied")))
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
        while batch.len() < CREATION_BATCH_MAX
            && let Some(next) = waiting.pop_front()
        {
            // Of two requests with the same slot, the later one waits and finds the first one's
            // response.
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
        let results: Vec<_> = match committer.batcher().create(org, requests).await {
            Ok(done) => {
                done.into_iter().map(|done| done.or_else(|refused| alone(is_alone, refused))).collect()
            }
            // It may have been written. A retry with the same idempotency key returns the outcome.
            Err(Error::Store(store::Error::Unavailable { source, .. })) => {
                answers.iter().map(|_| Err(unanswered(&source.to_string()))).collect()
            }
            Err(error) if is_alone => vec![Err(error.into())],
            Err(_) => answers.iter().map(|_| Ok(None)).collect(),
        };
        for (answer, results) in answers.into_iter().zip(results) {
            // The caller may be gone; then nobody receives.
            let _ = answer.send(results);
        }
    }
}

/// Reports a rejection only for a request that was alone in its batch.
fn alone<A, E>(is_alone: bool, refused: E) -> Result<Option<A>, E> {
    if is_alone { Err(refused) } else { Ok(None) }
}

impl<A, E> CreationBatcher<A, E> {
    /// Executes requests in one transaction. For each, returns its response, `None` if its slot
    /// already has one, or the reason for its rejection.
    async fn create(
        &self,
        org: OrgId,
        requests: Vec<Request<A, E>>,
    ) -> Result<Vec<Result<Option<A>, E>>, Error> {
        let mut unit = self.journal.begin(org).await?.shared();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            unit.begin_request(request.slot).await?;
            let answer = (request.decide)(&mut unit).await;
            if answer.is_err() {
                unit.discard_current();
            }
            answers.push(answer);
        }
        let mut made = unit.commit_batch().await?.into_iter();
        let mut of = |answer: A| made.next().unwrap_or_default().then_some(answer);
        Ok(answers.into_iter().map(|answer| answer.map(&mut of)).collect())
    }
}

fn unanswered<E: From<Error>>(reason: &str) -> E {
    Error::Store(store::Error::unanswered(reason)).into()
}
