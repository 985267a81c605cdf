//! A unit of work: callers' commands in one transaction, notifications after its commit.

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
        creation::{Creation, Made},
        event::Packed,
        idempotency::{Begun, Claimed, Kept, Slot},
        notification::Notification,
        token::NewToken,
    },
};

use super::{Error, Journal};

/// One transaction of one organization. Dropped without commit, nothing happened.
pub struct Unit {
    pub(super) journal: Journal,
    pub(super) tx: Tx,
    notifications: Vec<Notification>,
    grown: Vec<Grown>,
    /// Slots whose request is done in this transaction, and its answers that are not
    /// written yet.
    claimed: Vec<Claimed>,
    kept: Vec<Kept>,
    /// Agents that were read in it, by the id or name that a request has for each.
    agents: HashMap<String, Agent>,
    /// Where several requests share it, the sessions that they make: written together.
    together: Option<Together>,
}

/// What requests that share a unit have in common.
#[derive(Default)]
struct Together {
    new: Vec<New>,
    /// How many they were before the request that was begun last.
    before: usize,
    data_key: Option<DataKey>,
}

/// A new session that is not stored yet.
struct New {
    session: Session,
    events: Vec<Packed>,
    now: Timestamp,
    token: Option<NewToken>,
    /// The answer to its request, where that is kept with it.
    kept: Option<Kept>,
}

/// A log that grew in a transaction.
struct Grown {
    session: SessionId,
    base: i64,
    ts: Timestamp,
    by: Vec<Packed>,
}

/// What a command did.
#[derive(Debug)]
pub struct Executed {
    /// The session after it.
    pub session: Session,
    /// The events that it became; none when it changed nothing.
    pub events: Vec<Event>,
}

/// A session that is decided on, with the events that it begins with.
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
    /// Decides on a new session; nothing of it is stored yet.
    pub fn new(id: SessionId, new: NewSession, stamp: &Stamp) -> Self {
        let now = stamp.origin.now();
        let drafts = decide::create(new, stamp);
        let events = numbered(&drafts, 0, now);
        let Some((session, _)) = crate::domain::apply::fold(id, &events) else {
            unreachable!("a new log begins with session.created");
        };
        Self { session, drafts, events, now, token: None, is_stored: false }
    }

    /// The same with a client token, which is stored with it.
    pub fn with_token(self, token: NewToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// The session as its first events make it.
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

    /// The same for several requests, whose new sessions are written together.
    pub(super) fn shared(self) -> Self {
        Self { together: Some(Together::default()), ..self }
    }

    /// The transaction, for reads and for what is not an event.
    pub fn tx(&mut self) -> &mut Tx {
        &mut self.tx
    }

    /// A notification to send once this is committed.
    pub fn notification(&mut self, notification: Notification) {
        self.notifications.push(notification);
    }

    /// Claims the slot of the request that this unit does, for the answer that
    /// [`Unit::keep`] gives. None where it is new, else what became of the request that
    /// has the slot.
    pub async fn begin_once(&mut self, slot: Slot) -> Result<Option<Begun>, Error> {
        match self.tx.begin_once(slot, self.journal.store.master()).await? {
            Begun::Fresh(claimed) => {
                self.claimed.push(claimed);
                Ok(None)
            }
            begun @ (Begun::Replay { .. } | Begun::Mismatch) => Ok(Some(begun)),
        }
    }

    /// The agent that a request names by its id or name, read once for all that share
    /// the unit.
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

    /// Keeps the answer for every slot that was claimed; the first one counts. It is
    /// written at the latest by the commit.
    pub fn keep(&mut self, status: u16, body: impl FnOnce() -> Vec<u8>) {
        if self.claimed.is_empty() {
            return;
        }
        let (body, org, origin) = (body(), self.tx.org(), &self.journal.origin);
        let claimed = self.claimed.drain(..);
        self.kept.extend(claimed.map(|claimed| claimed.answer(org, status, &body, origin)));
    }

    /// Stores a new session without its events, for what must be there before them, as
    /// destinations.
    pub async fn store(&mut self, prepared: &mut Prepared) -> Result<(), Error> {
        let (session, token) = (&prepared.session, prepared.token.as_ref());
        self.tx.insert_sessions(&[Creation { session, events: &[], token, kept: None }]).await?;
        prepared.is_stored = true;
        Ok(())
    }

    /// Stores a new session, or its events where it is stored, and wakes a worker for
    /// its input. In a unit that is shared it is stored with the others, and its answer too.
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

    /// Stores new sessions.
    async fn insert(&mut self, new: Vec<New>) -> Result<Vec<Made>, Error> {
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

    /// Begins the next one of the requests that share the unit: its slot is claimed with
    /// its answer, if it has one.
    pub(super) async fn begin_next(&mut self, slot: Option<Slot>) -> Result<(), Error> {
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

    /// Leaves out what the request made that was begun last.
    pub(super) fn leave_out(&mut self) {
        self.claimed.clear();
        self.kept.clear();
        if let Some(together) = &mut self.together {
            together.new.truncate(together.before);
        }
    }

    /// Commits what the requests that share the unit made; returns of each new session, in
    /// their order, whether it is there: not where its request has an answer already.
    pub(super) async fn commit_together(mut self) -> Result<Vec<bool>, Error> {
        let new = self.together.take().unwrap_or_default().new;
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let made = self.insert(new).await?;
        self.commit().await?;
        Ok(made.into_iter().map(|made| made.is_new).collect())
    }

    /// Has what waits in a session looked at now; with nothing waiting nothing happens.
    ///
    /// # Errors
    /// `Rejected` when the session is closed or paused.
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

    /// Tells that a turn is due; if the session is held by another job, also its holder.
    fn is_due(&mut self, is_held: bool) {
        self.notifications.push(Notification::Job);
        if is_held {
            self.notifications.push(Notification::Control);
        }
    }

    /// Locks a session, decides a command on it and writes what comes of it.
    ///
    /// # Errors
    /// `Rejected` when the session's state forbids it, `Store(NotFound)` when this
    /// organization has no such session. Either way nothing is written.
    pub async fn execute(
        &mut self,
        id: SessionId,
        command: Command,
        stamp: &Stamp,
    ) -> Result<Executed, Error> {
        let session = self.tx.lock_session(id).await?;
        self.execute_locked(session, command, stamp).await
    }

    /// Closes a session: its open calls are settled with it.
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

    /// Makes everything durable, then tells who may be waiting for it.
    pub async fn commit(mut self) -> Result<(), Error> {
        for kept in &self.kept {
            self.tx.keep(kept).await?;
        }
        self.tx.commit().await?;
        for Grown { session, base, ts, by } in self.grown {
            self.journal.tell_growth(session, base, ts, &by);
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

    /// What must happen besides, read from the events.
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
            .any(|event| matches!(event.draft.body, Body::SessionResumed {} | Body::SessionCompleted { .. }))
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

/// Whether a worker is to look at the session: a turn that waits for a timer holds none, and
/// a cancel must find one.
fn wakes(event: &Event) -> bool {
    matches!(event.draft.body, Body::UserMessage { .. } | Body::TurnCancelRequested { .. })
}

fn numbered(drafts: &[Draft], base: i64, ts: Timestamp) -> Vec<Event> {
    (base + 1..).zip(drafts).map(|(seq, draft)| Event { seq, ts, draft: draft.clone() }).collect()
}
