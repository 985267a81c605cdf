//! What a leased turn writes: fenced, and without holding the session's row.

use std::time::Instant;

use crate::{
    domain::{
        AgentId, Event, Session, TurnId,
        budget::Budget,
        delta::Delta,
        event::{Body, Draft},
        piece::Piece,
        spend::Verdict,
    },
    store::{
        notification::Notification,
        record::{Fence, Record, Recorded},
        spend::Ask,
    },
};

use super::{Error, Journal, Log, LogSize, meter};

/// The pen of one lease: of its turn, or of the session alone.
#[derive(Clone)]
pub struct Writer {
    journal: Journal,
    fence: Fence,
    turn: Option<TurnId>,
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
    /// The pen for one lease, and for one turn under it.
    pub fn writer(&self, fence: Fence, turn: Option<TurnId>) -> Writer {
        Writer { journal: self.clone(), fence, turn }
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
        let Fence { org, session, .. } = fence;
        let ts = self.origin.now();
        let events = self.pack(org, session, drafts).await?;
        let began = Instant::now();
        let record = Record { fence, turn, ts, events };
        let (recorded, record) = self.record_committer.record(record).await.map_err(Error::from)?;
        match recorded {
            Recorded::After { base, has_deliveries } => {
                metrics::histogram!("sojourn_append_seconds").record(began.elapsed());
                meter::count(&record.events);
                self.tell_growth(session, base, ts, &record.events);
                // As the store decides what it marks as changed in the list.
                if record.events.iter().any(|event| event.draft.body.moves_status()) {
                    self.notifications.send(Notification::List(org));
                }
                if has_deliveries {
                    self.notifications.send(Notification::Delivery);
                }
                let places = base + 1..;
                Ok(places
                    .zip(record.events)
                    .map(|(seq, event)| Event { seq, ts, draft: event.draft })
                    .collect())
            }
            Recorded::Stale => {
                self.pay_late(fence, record.events.iter().map(|event| &event.draft)).await?;
                Err(Halted::Stale)
            }
            Recorded::Moved => Err(Halted::Moved),
        }
    }
}

impl Journal {
    /// Pays for what a lease had begun when its session was closed under it.
    async fn pay_late<'a>(
        &self,
        fence: Fence,
        drafts: impl IntoIterator<Item = &'a Draft>,
    ) -> Result<(), Error> {
        // A start that was refused did not happen, and neither did calls that nobody ran.
        let is_work = |draft: &&Draft| {
            matches!(draft.body, Body::StepCompleted(_) | Body::StepAborted(_) | Body::ExecCompleted { .. })
        };
        let delta = Delta::of(drafts.into_iter().filter(is_work));
        if !delta.usage.is_none() {
            self.store.pay_late(fence, self.origin.now(), &delta).await?;
        }
        Ok(())
    }
}

impl Writer {
    /// Pays for what this lease had begun, if its session was closed under it.
    pub async fn pay_late(&self, drafts: &[Draft]) -> Result<(), Error> {
        self.journal.pay_late(self.fence, drafts).await
    }

    /// Appends events in one statement and returns them with their places.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is written then.
    pub async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halted> {
        self.journal.record(self.fence, self.turn, drafts).await
    }

    /// The log so far.
    pub async fn log(&self) -> Result<Vec<Event>, Error> {
        self.journal.log(self.fence.org, self.fence.session, 0).await
    }

    /// The log so far, of which only what is new is read if a turn of it ended here not
    /// long ago.
    pub async fn cached_log(&self) -> Result<Log, Error> {
        let Fence { org, session, .. } = self.fence;
        let mut log = self.journal.log_cache.take(session);
        let (size, new) = (log.size(), self.journal.log(org, session, log.head()).await?);
        log.events.extend(new);
        Ok(Log::new(log.events, size))
    }

    /// Keeps the log of a turn that ended, for the next one; of those that
    /// [`Writer::cached_log`] gave, `weighed` as there.
    pub fn cache_log(&self, events: Vec<Event>, size: LogSize) {
        self.journal.log_cache.put(self.fence.session, Log::new(events, size));
    }

    /// The session as it is now.
    pub async fn session(&self) -> Result<Session, Error> {
        Ok(self.journal.store.load_session(self.fence.org, self.fence.session).await?)
    }

    /// Whether anything bounds what the calls of this agent may cost.
    pub async fn spend_is_bound(&self, agent: AgentId) -> Result<bool, Error> {
        Ok(self.journal.store.billing(self.fence.org, Some(agent)).await?.is_bound)
    }

    /// The limits that the session shares, as they are now.
    pub async fn budgets(&self) -> Result<Vec<Budget>, Error> {
        Ok(self.journal.store.budgets_of(self.fence.org, self.fence.session).await?)
    }

    /// Reserves what a call may use at most, if that may be spent.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is reserved then.
    pub async fn reserve(&self, ask: &Ask<'_>) -> Result<Verdict, Halted> {
        let reserved = self.journal.store.reserve(self.fence, ask).await;
        reserved.map_err(Error::from)?.ok_or(Halted::Stale)
    }

    /// Ends the reservation to a command, after its cost was recorded.
    pub async fn release_exec(&self, call: &str) -> Result<(), Error> {
        Ok(self.journal.store.release_exec(self.fence, call).await?)
    }

    /// The turn that this pen writes for, if it is of one.
    pub fn turn(&self) -> Option<TurnId> {
        self.turn
    }

    /// The lease that it writes under.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether anybody in this process listens to the session's answers as they grow.
    pub fn is_heard(&self) -> bool {
        self.journal.notifications.is_heard(self.fence.session)
    }

    /// Tells a piece of a growing answer to those who listen in this process.
    pub fn tell(&self, piece: Piece) {
        self.journal.notifications.tell(piece);
    }

    /// Tells workers that the session's job may be ready again.
    pub fn notify_job(&self) {
        self.journal.notifications.send(Notification::Job);
    }
}
