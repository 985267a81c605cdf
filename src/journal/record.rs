//! What a leased turn writes: fenced, and without holding the session's row.

use crate::{
    domain::{Event, Session, TurnId, event::Draft},
    store::{
        hint::Hint,
        record::{Fence, Recorded},
    },
};

use super::{Error, Journal};

/// The pen of one leased turn.
#[derive(Clone)]
pub struct TurnWriter {
    journal: Journal,
    fence: Fence,
    turn: TurnId,
}

/// Why a leased turn could not write.
#[derive(Debug, thiserror::Error)]
pub enum Halted {
    /// Another worker holds the session, or it was archived: stop at once.
    #[error("the lease on this session was lost")]
    Stale,
    /// Input arrived before the turn started: look again.
    #[error("the session moved on before the turn started")]
    Moved,
    /// The database or the blob store is away: the lease decides who goes on.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl Journal {
    /// The pen for one turn under one lease.
    pub fn writer(&self, fence: Fence, turn: TurnId) -> TurnWriter {
        TurnWriter { journal: self.clone(), fence, turn }
    }

    /// Appends events of a leased session in one statement and returns them with their
    /// places; of a turn where one is named, else of none.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is written then.
    pub async fn record(
        &self,
        fence: Fence,
        turn: Option<TurnId>,
        drafts: Vec<Draft>,
    ) -> Result<Vec<Event>, Halted> {
        let now = self.origin.now();
        let packed = self.pack(fence.tenant, fence.session, drafts).await?;
        match self.store.record(fence, turn, now, &packed).await.map_err(Error::from)? {
            Recorded::After(base) => {
                self.hints.send(Hint::Log(fence.session));
                self.hints.send(Hint::Delivery);
                let places = base + 1..;
                Ok(places
                    .zip(packed)
                    .map(|(seq, event)| Event { seq, ts: now, draft: event.draft })
                    .collect())
            }
            Recorded::Stale => Err(Halted::Stale),
            Recorded::Moved => Err(Halted::Moved),
        }
    }
}

impl TurnWriter {
    /// Appends events of the turn in one statement and returns them with their places.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is written then.
    pub async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halted> {
        self.journal.record(self.fence, Some(self.turn), drafts).await
    }

    /// The log so far.
    pub async fn log(&self) -> Result<Vec<Event>, Error> {
        self.journal.log(self.fence.tenant, self.fence.session, 0).await
    }

    /// The session as it is now.
    pub async fn session(&self) -> Result<Session, Error> {
        Ok(self.journal.store.load_session(self.fence.tenant, self.fence.session).await?)
    }

    /// The turn that this pen writes for.
    pub fn turn(&self) -> TurnId {
        self.turn
    }

    /// The lease that it writes under.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Tells workers that the session's job may be ready again.
    pub fn hint_job(&self) {
        self.journal.hints.send(Hint::Job);
    }
}
