//! Group commit of the requests of one organization that create sessions.
//!
//! Each request is decided separately, one after the other. One statement writes all their sessions
//! in one transaction. A request that is rejected, or whose batch could not be written, must be
//! executed alone by its caller, so an error reaches only the request that caused it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    marker::PhantomData,
};

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::{
    Error, Journal, Unit,
    committer::{Batcher, Committer},
};
use crate::{
    base::{limit::CREATION_BATCH_MAX, seal::DataKey},
    domain::{AgentId, OrgId},
    store::{
        self,
        agent::Agent,
        creation::Creation,
        idempotency::{Claimed, Slot},
    },
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

/// Decides a request: reads in the unit what its session needs, and returns the session and the
/// response.
pub type Decide<A, E> =
    dyn for<'a> FnOnce(&'a mut Unit, &'a mut AgentCache) -> BoxFuture<'a, Result<(Creation, A), E>> + Send;

/// Returns the status and the body of a response that are stored.
pub(super) type Stored<A> = fn(&A) -> (u16, Vec<u8>);

/// Agents read in one transaction, by the id or name in the request.
#[derive(Default)]
pub struct AgentCache(HashMap<String, Agent>);

struct CreationBatcher<A, E> {
    journal: Journal,
    stored: Stored<A>,
    // `E` passes between tasks but is never stored here.
    fails: PhantomData<fn() -> E>,
}

/// Requests that share a transaction. Their sessions are stored in one statement, each with the
/// response to its request.
struct Batch {
    unit: Unit,
    agents: AgentCache,
    /// The organization's key, once a response needs it.
    data_key: Option<DataKey>,
    creations: Vec<Creation>,
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
    pub fn new(journal: Journal, stored: Stored<A>) -> Self {
        let tasks = journal.committer.clone();
        Self(Committer::of(CreationBatcher { journal, stored, fails: PhantomData }, tasks))
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
        let unit = self.journal.begin(org).await?;
        let mut batch = Batch { unit, agents: AgentCache::default(), data_key: None, creations: Vec::new() };
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(batch.add(request, self.stored).await?);
        }
        let mut made = batch.commit().await?.into_iter();
        let mut of = |answer: A| made.next().unwrap_or_default().then_some(answer);
        Ok(answers.into_iter().map(|answer| answer.map(&mut of)).collect())
    }
}

impl Batch {
    /// Decides a request. A request that is rejected adds no session.
    async fn add<A, E>(&mut self, request: Request<A, E>, stored: Stored<A>) -> Result<Result<A, E>, Error> {
        // Claimed by the statement that stores the session.
        let claimed = match request.slot {
            Some(slot) => Some(Claimed::with_answer(slot, self.data_key().await?)),
            None => None,
        };
        let decided = (request.decide)(&mut self.unit, &mut self.agents).await;
        Ok(decided.map(|(creation, answer)| {
            let kept = claimed.map(|claimed| {
                let (status, body) = stored(&answer);
                claimed.answer(self.unit.tx.org(), status, &body, &self.unit.journal.origin)
            });
            self.creations.push(Creation { kept, ..creation });
            answer
        }))
    }

    async fn data_key(&mut self) -> Result<DataKey, Error> {
        let key = match self.data_key.take() {
            Some(key) => key,
            None => self.unit.tx.data_key(self.unit.journal.store.master()).await?,
        };
        Ok(self.data_key.insert(key).clone())
    }

    /// Commits the sessions. Returns for each whether it was created.
    async fn commit(mut self) -> Result<Vec<bool>, Error> {
        if self.creations.is_empty() {
            return Ok(Vec::new());
        }
        let made = self.unit.create_all(self.creations).await?;
        self.unit.commit().await?;
        Ok(made)
    }
}

impl AgentCache {
    /// Reads an agent by its id or name.
    pub async fn find(&mut self, unit: &mut Unit, named: &str) -> Result<Option<Agent>, Error> {
        if let Some(agent) = self.0.get(named) {
            return Ok(Some(agent.clone()));
        }
        let found = match named.parse::<AgentId>() {
            Ok(id) => match unit.tx.agent(id).await {
                Err(store::Error::NotFound) => None,
                found => Some(found?),
            },
            Err(_) => unit.tx.agent_by_name(named).await?,
        };
        self.0.extend(found.clone().map(|agent| (named.to_owned(), agent)));
        Ok(found)
    }
}

fn unanswered<E: From<Error>>(reason: &str) -> E {
    Error::Store(store::Error::unanswered(reason)).into()
}
