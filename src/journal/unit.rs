//! Unit of work: callers' commands in one transaction, notifications after its commit.

use std::collections::HashMap;

use crate::{
    base::{Timestamp, seal::DataKey},
    domain::{
        AgentId, Event, Session, SessionId, Status,
        decide::{self, Command, NewSession, Stamp},
        event::{Body, Draft},
    },
    store::{
        self, Tx,
        agent::Agent,
        command::Change,
        creation::{Creation, Inserted},
        event::Packed,
        idempotency::{Claimed, Slot, SlotState, StoredResponse},
        notification::Notification,
        token::NewToken,
    },
};

use super::{Error, Journal};

/// One transaction of one organization. Dropping it without commit rolls back.
pub struct Unit {
    pub(super) journal: Journal,
    pub(super) tx: Tx,
    notifications: Vec<Notification>,
    grown: Vec<Grown>,
    /// Idempotency slots claimed in this transaction, and responses that are not written yet.
    claimed: Vec<Claimed>,
    kept: Vec<StoredResponse>,
    /// Agents read in this transaction, by the id or name in the request.
    agents: HashMap<String, Agent>,
    /// Set when several requests share the unit: their new sessions, written in one statement.
    together: Option<SharedUnit>,
}

/// State of the requests that share a unit.
#[derive(Default)]
struct SharedUnit {
    new: Vec<New>,
    /// Number of new sessions before the current request.
    before: usize,
    data_key: Option<DataKey>,
}

/// A new session that is not stored yet.
struct New {
    session: Session,
    events: Vec<Packed>,
    now: Timestamp,
    token: Option<NewToken>,
    /// The response to its request, if it is stored with the session.
    kept: Option<StoredResponse>,
}

/// A log that grew in this transaction.
struct Grown {
    session: SessionId,
    base: i64,
    ts: Timestamp,
    by: Vec<Packed>,
}

/// Result of a command.
#[derive(Debug)]
pub struct Executed {
    /// The session after the command.
    pub session: Session,
    /// The appended events; empty when the command changed nothing.
    pub events: Vec<Event>,
}

/// A decided new session with its first events.
#[must_use]
pub struct Prepared {
    session: Session,
    drafts: Vec<Draft>,
    events: Vec<Event>,
    now: Timestamp,
    token: Option<NewToken>,
    is_stored: bool,
}

impl New {
    fn creation(&self) -> Creation<'_> {
        let Self { session, events, token, kept, .. } = self;
        Creation { session, events, token: token.as_ref(), kept: kept.as_ref() }
    }
}

impl Prepared {
    /// Decides a new session. Nothing is stored yet.
    pub fn new(id: SessionId, new: NewSession, stamp: &Stamp) -> Self {
        let now = stamp.origin.now();
        let drafts = decide::create(new, stamp);
        let events = numbered(&drafts, 0, now);
        let Some((session, _)) = crate::domain::apply::fold(id, &events) else {
            unreachable!("a new log begins with session.created");
        };
        Self { session, drafts, events, now, token: None, is_stored: false }
    }

    /// Adds a client token that is stored with the session.
    pub fn with_token(self, token: NewToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Returns the session as folded from its first events.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Unit {
    pub(super) fn new(journal: Journal, tx: Tx) -> Self {
        Self {
            journal,
            tx,
            notifications: Vec::new(),
            grown: Vec::new(),
            claimed: Vec::new(),
            kept: Vec::new(),
            agents: HashMap::new(),
            together: None,
        }
    }

    /// Turns this into a unit for several requests; their new sessions are written together.
    pub(super) fn shared(self) -> Self {
        Self { together: Some(SharedUnit::default()), ..self }
    }

    /// Returns the transaction, for reads and for writes that are not events.
    pub fn tx(&mut self) -> &mut Tx {
        &mut self.tx
    }

    /// Adds a notification that is sent after the commit.
    pub fn notification(&mut self, notification: Notification) {
        self.notifications.push(notification);
    }

    /// Claims the idempotency slot of this unit's request.
    ///
    /// [`Unit::keep`] supplies its response. Returns `None` for a new slot, else the outcome of the
    /// request that has the slot.
    pub async fn claim_slot(&mut self, slot: Slot) -> Result<Option<SlotState>, Error> {
        match self.tx.claim_slot(slot, self.journal.store.master()).await? {
            SlotState::Fresh(claimed) => {
                self.claimed.push(claimed);
                Ok(None)
            }
            begun @ (SlotState::Replay { .. } | SlotState::Mismatch) => Ok(Some(begun)),
        }
    }

    /// Reads an agent by its id or name, once for all requests that share the unit.
    pub async fn agent(&mut self, named: &str) -> Result<Option<Agent>, Error> {
        if let Some(agent) = self.agents.get(named) {
            return Ok(Some(agent.clone()));
        }
        let found = match named.parse::<AgentId>() {
            Ok(id) => match self.tx.agent(id).await {
                Err(store::Error::NotFound) => None,
                found => Some(found?),
            },
            Err(_) => self.tx.agent_by_name(named).await?,
        };
        self.agents.extend(found.clone().map(|agent| (named.to_owned(), agent)));
        Ok(found)
    }

    /// Stores the response for every claimed slot. Only the first call counts. It is written at the
    /// latest by the commit.
    pub fn keep(&mut self, status: u16, body: impl FnOnce() -> Vec<u8>) {
        if self.claimed.is_empty() {
            return;
        }
        let (body, org, origin) = (body(), self.tx.org(), &self.journal.origin);
        let claimed = self.claimed.drain(..);
        self.kept.extend(claimed.map(|claimed| claimed.answer(org, status, &body, origin)));
    }

    /// Stores a new session without its events.
    ///
    /// Used when rows such as destinations must exist before the events.
    pub async fn store(&mut self, prepared: &mut Prepared) -> Result<(), Error> {
        let (session, token) = (&prepared.session, prepared.token.as_ref());
        self.tx.insert_sessions(&[Creation { session, events: &[], token, kept: None }]).await?;
        prepared.is_stored = true;
        Ok(())
    }

    /// Stores a new session and notifies workers.
    ///
    /// If the session is stored already, stores only its events. In a shared unit the session is
    /// stored together with the others, and with its response.
    pub async fn create(&mut self, prepared: Prepared) -> Result<Executed, Error> {
        let Prepared { session, drafts, events, now, token, is_stored } = prepared;
        let packed = self.journal.pack(self.tx.org(), session.id, drafts).await?;
        let executed = Executed { session: session.clone(), events };
        if is_stored {
            let change = Change { session: &session, ended: &[], base: 0, events: &packed, is_due: false };
            let has_deliveries = self.tx.write_back(&change).await?.has_deliveries;
            self.began(&session, now, packed, has_deliveries);
            return Ok(executed);
        }
        let mut new = New { session, events: packed, now, token, kept: None };
        match &mut self.together {
            None => {
                self.insert(vec![new]).await?;
            }
            Some(together) => {
                new.kept = self.kept.pop();
                together.new.push(new);
            }
        }
        Ok(executed)
    }

    /// Inserts new sessions.
    async fn insert(&mut self, new: Vec<New>) -> Result<Vec<Inserted>, Error> {
        let creations: Vec<_> = new.iter().map(New::creation).collect();
        let made = self.tx.insert_sessions(&creations).await?;
        for (new, made) in new.into_iter().zip(&made).filter(|(_, made)| made.is_new) {
            self.began(&new.session, new.now, new.events, made.has_deliveries);
        }
        Ok(made)
    }

    fn began(&mut self, session: &Session, now: Timestamp, events: Vec<Packed>, has_deliveries: bool) {
        self.grew(session.id, 0, now, events, has_deliveries);
        if session.queued.is_some() {
            self.notifications.push(Notification::Job);
        }
    }

    /// Begins the next request of a shared unit. Its slot, if any, is claimed when its response is
    /// written.
    pub(super) async fn begin_request(&mut self, slot: Option<Slot>) -> Result<(), Error> {
        let together = self.together.get_or_insert_default();
        together.before = together.new.len();
        let Some(slot) = slot else { return Ok(()) };
        let key = match together.data_key.take() {
            Some(key) => key,
            None => self.tx.data_key(self.journal.store.master()).await?,
        };
        together.data_key = Some(key.clone());
        self.claimed.push(Claimed::with_answer(slot, key));
        Ok(())
    }

    /// Discards the sessions of the current request.
    pub(super) fn discard_current(&mut self) {
        self.claimed.clear();
        self.kept.clear();
        if let Some(together) = &mut self.together {
            together.new.truncate(together.before);
        }
    }

    /// Commits the sessions of a shared unit.
    ///
    /// Returns for each new session, in order, whether it was created. It is not created when its
    /// request already has a response.
    pub(super) async fn commit_batch(mut self) -> Result<Vec<bool>, Error> {
        let new = self.together.take().unwrap_or_default().new;
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let made = self.insert(new).await?;
        self.commit().await?;
        Ok(made.into_iter().map(|made| made.is_new).collect())
    }

    /// Makes a session's pending turn due now. Does nothing when no turn is pending.
    ///
    /// # Errors
    /// `Rejected` when the session is archived or paused.
    pub async fn wake_up(&mut self, id: SessionId, stamp: &Stamp) -> Result<Executed, Error> {
        let executed = self.execute(id, Command::Wake, stamp).await?;
        if executed.session.running.is_some() || executed.session.queued.is_some() {
            self.enqueue(id).await?;
        }
        Ok(executed)
    }

    async fn enqueue(&mut self, id: SessionId) -> Result<(), Error> {
        let is_held = self.tx.enqueue_turn(id).await?;
        self.is_due(is_held);
        Ok(())
    }

    /// Notifies workers that a turn is due, and the holder if another job holds the session.
    fn is_due(&mut self, is_held: bool) {
        self.notifications.push(Notification::Job);
        if is_held {
            self.notifications.push(Notification::Control);
        }
    }

    /// Locks a session, decides a command on it and appends the resulting events.
    ///
    /// # Errors
    /// `Rejected` when the session's state forbids it, `Store(NotFound)` when this organization has
    /// no such session. In both cases nothing is written.
    pub async fn execute(
        &mut self,
        id: SessionId,
        command: Command,
        stamp: &Stamp,
    ) -> Result<Executed, Error> {
        let session = self.tx.lock_session(id).await?;
        self.execute_locked(session, command, stamp).await
    }

    /// Archives a session and settles its open calls.
    pub async fn archive(&mut self, id: SessionId, stamp: &Stamp) -> Result<Executed, Error> {
        let session = self.tx.lock_session(id).await?;
        let open_calls = match &session.running {
            Some(turn) => self.tx.open_calls(id, turn.id).await?,
            None => Vec::new(),
        };
        let executed = self.execute_locked(session, Command::Archive { open_calls }, stamp).await?;
        self.tx.delete_tokens(id).await?;
        self.tx.delete_scheduled_wakes(id).await?;
        Ok(executed)
    }

    /// Commits, then sends the notifications.
    pub async fn commit(mut self) -> Result<(), Error> {
        for kept in &self.kept {
            self.tx.keep(kept).await?;
        }
        self.tx.commit().await?;
        for Grown { session, base, ts, by } in self.grown {
            self.journal.notify_growth(session, base, ts, &by);
        }
        for notification in self.notifications {
            self.journal.notifications.send(notification);
        }
        Ok(())
    }

    async fn execute_locked(
        &mut self,
        mut session: Session,
        command: Command,
        stamp: &Stamp,
    ) -> Result<Executed, Error> {
        let drafts = decide::decide(&session, command, stamp)?;
        if drafts.is_empty() {
            return Ok(Executed { session, events: Vec::new() });
        }
        let (base, now) = (session.head, stamp.origin.now());
        let events = numbered(&drafts, base, now);
        let ended: Vec<_> = events.iter().filter_map(|event| session.apply(event).ended).collect();
        let by = self.journal.pack(self.tx.org(), session.id, drafts).await?;
        let is_due = session.status != Status::Archived && events.iter().any(wakes);
        let change = Change { session: &session, ended: &ended, base, events: &by, is_due };
        let written = self.tx.write_back(&change).await?;
        self.grew(session.id, base, now, by, written.has_deliveries);
        if is_due {
            self.is_due(written.is_held);
        }
        self.wake(&session, &events).await?;
        Ok(Executed { session, events })
    }

    /// Writes the side effects that the events require.
    async fn wake(&mut self, session: &Session, events: &[Event]) -> Result<(), Error> {
        if session.status == Status::Archived {
            self.tx.enqueue_cleanup(session.id).await?;
            self.tx.cancel_operations(session.id).await?;
            self.notifications.extend([Notification::Job, Notification::Control]);
            return Ok(());
        }
        if events.iter().any(|event| matches!(event.draft.body, Body::SessionPaused {})) {
            self.tx.pause_sandbox(session.id).await?;
            self.notifications.push(Notification::Control);
        }
        if events
            .iter()
            .any(|event| matches!(event.draft.body, Body::SessionResumed {} | Body::SessionStopped { .. }))
        {
            self.tx.resume_sandbox(session.id).await?;
            if session.running.is_some() || session.queued.is_some() {
                self.enqueue(session.id).await?;
            }
        }
        if session.cancel_turn_id.is_some() {
            self.notifications.push(Notification::Control);
        }
        Ok(())
    }

    fn grew(&mut self, session: SessionId, base: i64, ts: Timestamp, by: Vec<Packed>, has_deliveries: bool) {
        self.grown.push(Grown { session, base, ts, by });
        self.notifications.push(Notification::List(self.tx.org()));
        if has_deliveries {
            self.notifications.push(Notification::Delivery);
        }
    }
}

/// Returns whether a worker must process the session.
///
/// A turn that waits for a timer holds no worker, and a cancel must reach one.
fn wakes(event: &Event) -> bool {
    matches!(event.draft.body, Body::UserMessage { .. } | Body::TurnCancelRequested { .. })
}

fn numbered(drafts: &[Draft], base: i64, ts: Timestamp) -> Vec<Event> {
    (base + 1..).zip(drafts).map(|(seq, draft)| Event { seq, ts, draft: draft.clone() }).collect()
}
