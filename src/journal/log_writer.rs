//! Writes of a leased turn: fenced, and without a lock on the session's row.

use std::time::Instant;

use crate::{
    domain::{
        AgentId, Event, EventId, Session, SessionId, TurnId,
        budget::Budget,
        delta::Delta,
        event::{Body, Draft},
        log_fold::{LogFold, ReadTo},
        piece::ResponseDelta,
        spend::Verdict,
    },
    store::{
        self,
        event::Packed,
        job::Ready,
        notification::Notification,
        record::{Fence, Record, Recorded},
        reservation::Ask,
        snapshot::NewSnapshot,
    },
};

use super::{Error, Journal, ReadFold, meter, spill::pack};

/// Appends to the log under one lease, for one turn or for the session alone.
#[derive(Clone)]
pub struct Writer {
    journal: Journal,
    fence: Fence,
    turn: Option<TurnId>,
    parent: Option<SessionId>,
}

/// The place of an append: the session under its lease, the turn, and the session that started it.
struct Append {
    fence: Fence,
    turn: Option<TurnId>,
    parent: Option<SessionId>,
}

/// Reasons why a leased turn could not write.
#[derive(Debug, thiserror::Error)]
pub enum Halted {
    /// Another worker holds the session, or it was archived. Stop at once.
    #[error("the lease on this session was lost")]
    Stale,
    /// Input arrived before the turn started. Re-read the session.
    #[error("the session moved on before the turn started")]
    Moved,
    /// The database or the blob store failed. The lease decides which worker continues.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// An append that failed.
#[derive(Debug)]
pub struct AppendError {
    pub halted: Halted,
    /// The events. After `Failed` they may be in the log or not: the next epoch of the lease shows it.
    pub drafts: Vec<Draft>,
}

impl Journal {
    /// Creates a writer for one lease and, if given, one turn under it.
    pub fn writer(&self, fence: Fence, turn: Option<TurnId>) -> Writer {
        Writer { journal: self.clone(), fence, turn, parent: None }
    }

    /// Appends events of a leased session and returns them with their `seq`.
    ///
    /// One statement writes them. They belong to `turn` if given, else to no turn.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is written then.
    pub async fn record(
        &self,
        fence: Fence,
        turn: Option<TurnId>,
        drafts: Vec<Draft>,
    ) -> Result<Vec<Event>, Halted> {
        let writer = self.writer(fence, turn);
        writer.record(drafts).await
    }

    async fn append(
        &self,
        Append { fence, turn, parent }: Append,
        drafts: Vec<Draft>,
        read_to: Option<ReadTo>,
        snapshot: Option<NewSnapshot>,
    ) -> Result<Vec<Event>, AppendError> {
        let Fence { org, session, .. } = fence;
        let ts = self.origin.now();
        let needs = |depends: fn(&Body) -> bool| drafts.iter().any(|draft| depends(&draft.body));
        let actions_to = read_to.map(|read| read.actions).filter(|_| needs(Body::depends_on_actions));
        let steers_to = read_to.map(|read| read.steers).filter(|_| needs(Body::depends_on_steers));
        let mut events = match pack(org, session, drafts) {
            Ok(events) => events,
            Err(error) => return Err(AppendError { halted: error.into(), drafts: Vec::new() }),
        };
        if let Err(error) = self.store_contents(org, session, &mut events).await {
            return Err(AppendError { halted: error.into(), drafts: unpack(events) });
        }
        let began = Instant::now();
        let record = Record { fence, turn, parent, ts, events, actions_to, steers_to, snapshot };
        let (recorded, record) = self.record_committer.record(record).await;
        let events = record.map(|record| record.events).unwrap_or_default();
        let halted = match recorded {
            Ok(Recorded::After { base, has_deliveries, woken }) => {
                metrics::histogram!("sojourn_append_seconds").record(began.elapsed());
                meter::count(&events);
                self.notify_growth(session, base, ts, &events);
                // Same condition as in the store, which marks the session as changed in the list.
                if events.iter().any(|event| event.draft.body.changes_status()) {
                    self.notifications.send(Notification::List(org));
                }
                if has_deliveries {
                    self.notifications.send(Notification::Delivery(org));
                }
                for Ready { node } in woken {
                    self.notifications.send(Notification::Job { node });
                }
                let places = base + 1..;
                return Ok(places
                    .zip(events)
                    .map(|(seq, event)| Event { seq, ts, draft: event.draft })
                    .collect());
            }
            Ok(Recorded::Stale) => {
                match self.bill_late(fence, events.iter().map(|event| &event.draft)).await {
                    Ok(()) => Halted::Stale,
                    Err(error) => error.into(),
                }
            }
            Ok(Recorded::Moved) => Halted::Moved,
            Ok(Recorded::Late) => {
                let reason = "the database has failed over since the log was read";
                Error::from(store::Error::unanswered(reason)).into()
            }
            Err(error) => Error::from(error).into(),
        };
        Err(AppendError { halted, drafts: unpack(events) })
    }
}

fn unpack(events: Vec<Packed>) -> Vec<Draft> {
    events.into_iter().map(|event| event.draft).collect()
}

impl Journal {
    /// Bills work that a lease had started when its session was archived.
    async fn bill_late<'a>(
        &self,
        fence: Fence,
        drafts: impl IntoIterator<Item = &'a Draft>,
    ) -> Result<(), Error> {
        // A rejected start did not happen, and calls that did not run cost nothing.
        let is_work = |draft: &&Draft| {
            matches!(draft.body, Body::StepCompleted(_) | Body::StepAborted(_) | Body::ExecCompleted { .. })
        };
        let delta = Delta::of(drafts.into_iter().filter(is_work));
        if !delta.usage.is_none() {
            self.store.bill_late(fence, &delta).await?;
        }
        Ok(())
    }
}

impl Writer {
    /// Bills work that this lease had started, if its session was archived meanwhile.
    pub async fn bill_late(&self, drafts: &[Draft]) -> Result<(), Error> {
        self.journal.bill_late(self.fence, drafts).await
    }

    /// Appends events in one statement and returns them with their `seq`.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is written then.
    pub async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halted> {
        self.journal.append(self.place(), drafts, None, None).await.map_err(|error| error.halted)
    }

    /// The same for a turn that has read what callers sent it up to `read_to`; returns the events if it fails.
    ///
    /// # Errors
    /// `Moved` also if callers have sent more and the events depend on it.
    pub async fn append(&self, drafts: Vec<Draft>, read_to: ReadTo) -> Result<Vec<Event>, AppendError> {
        self.journal.append(self.place(), drafts, Some(read_to), None).await
    }

    /// Appends events, one of which reports a snapshot, and stores the snapshot in the same transaction. The objects of its
    /// new packs must be stored.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is written then. After `Failed` both are written or neither: under the
    /// next epoch, [`Store::newest_snapshot`] and [`Store::snapshot_packs`] show it.
    ///
    /// [`Store::newest_snapshot`]: crate::store::Store::newest_snapshot
    /// [`Store::snapshot_packs`]: crate::store::Store::snapshot_packs
    pub async fn record_snapshot(
        &self,
        drafts: Vec<Draft>,
        snapshot: NewSnapshot,
    ) -> Result<Vec<Event>, Halted> {
        let appended = self.journal.append(self.place(), drafts, None, Some(snapshot)).await;
        appended.map_err(|error| error.halted)
    }

    /// Closes the actions of its turn whose time has passed. Returns whether an action has ended after the event at
    /// `read_to_seq`.
    pub async fn actions_ended(&self, read_to_seq: i64) -> Result<bool, Error> {
        let Some(turn) = self.turn else { return Ok(false) };
        let Fence { org, session, .. } = self.fence;
        let now = self.journal.store.actions_now(org, session, turn).await?;
        if now.has_expired {
            self.journal.expire_actions(org, session, turn).await?;
        }
        Ok(now.has_expired || now.action_head > read_to_seq)
    }

    /// Reads the fold of the log, as [`Journal::fold`] does.
    pub async fn fold(&self, objects: bool) -> Result<ReadFold, Error> {
        self.journal.fold(self.fence.org, self.fence.session, objects).await
    }

    /// Adds the events that follow a fold in the log.
    pub async fn catch_up(&self, fold: &mut LogFold) -> Result<(), Error> {
        self.journal.catch_up(self.fence.org, self.fence.session, fold).await.map(drop)
    }

    /// Keeps the fold of an ended turn for the next turn.
    pub async fn keep_fold(&self, read: ReadFold) {
        self.journal.keep_fold(self.fence.org, self.fence.session, read).await;
    }

    /// Returns the first result of `find` for the events of these types, the newest event first.
    pub async fn newest<T>(
        &self,
        types: &[&'static str],
        find: impl FnMut(&Event) -> Option<T> + Send,
    ) -> Result<Option<T>, Error> {
        self.journal.newest(self.fence.org, self.fence.session, types, find).await
    }

    /// Returns which of these events are in the log.
    pub async fn known(&self, events: &[EventId]) -> Result<Vec<EventId>, Error> {
        Ok(self.journal.store.known_events(self.fence.org, self.fence.session, events).await?)
    }

    /// Reads the session.
    pub async fn session(&self) -> Result<Session, Error> {
        Ok(self.journal.store.load_session(self.fence.org, self.fence.session).await?)
    }

    /// Returns whether a spend cap or a balance limits the cost of this agent's calls.
    pub async fn spend_is_bound(&self, agent: AgentId) -> Result<bool, Error> {
        Ok(self.journal.store.billing(self.fence.org, Some(agent)).await?.is_bound)
    }

    /// Reads the limits that apply to the session, its own and those of its ancestors.
    pub async fn budgets(&self) -> Result<Vec<Budget>, Error> {
        Ok(self.journal.store.budgets_of(self.fence.org, self.fence.session).await?)
    }

    /// Reserves the maximum that a call may use, if the limits allow it.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold; nothing is reserved then.
    pub async fn reserve(&self, ask: &Ask<'_>) -> Result<Verdict, Halted> {
        let reserved = self.journal.store.reserve(self.fence, ask).await;
        reserved.map_err(Error::from)?.ok_or(Halted::Stale)
    }

    /// Releases the reservation of an exec, after its cost was recorded.
    pub async fn release_exec(&self, call: &str) -> Result<(), Error> {
        Ok(self.journal.store.release_exec(self.fence, call).await?)
    }

    /// Makes it the writer of a session that `parent` started.
    pub fn child_of(self, parent: Option<SessionId>) -> Self {
        Self { parent, ..self }
    }

    fn place(&self) -> Append {
        Append { fence: self.fence, turn: self.turn, parent: self.parent }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the turn that this writer writes for, if any.
    pub fn turn(&self) -> Option<TurnId> {
        self.turn
    }

    /// Returns the lease that it writes under.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns whether a reader in this process streams the session's partial output.
    pub fn has_readers(&self) -> bool {
        self.journal.notifications.has_readers(self.fence.session)
    }

    /// Sends a piece of partial output to the readers in this process.
    pub fn tell(&self, piece: ResponseDelta) {
        self.journal.notifications.tell(piece);
    }
}
