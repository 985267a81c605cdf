//! Unit of work: callers' commands in one transaction, notifications after its commit.

use crate::{
    base::Timestamp,
    domain::{
        Event, OrgId, Session, SessionId, Status,
        decide::{self, Command, Stamp},
        event::{Body, Draft},
        open_work::OpenWork,
    },
    store::{
        Tx,
        command::Change,
        event::Packed,
        event_content::EventContent,
        idempotency::{Claimed, Slot, SlotState},
        job::{DueTurn, Ready},
        notification::Notification,
    },
};

use super::{
    Error, Journal,
    spill::{pack, take_contents},
};

/// One transaction of one organization. Dropping it without commit rolls back.
pub struct Unit {
    pub(super) journal: Journal,
    pub(super) tx: Tx,
    notifications: Vec<Notification>,
    grown: Vec<Grown>,
    /// Idempotency slots claimed in this transaction that have no response yet.
    claimed: Vec<Claimed>,
    /// Complete bodies of the appended events that are truncated in their rows.
    pub(super) contents: Vec<EventContent>,
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

impl Journal {
    /// Begins a unit of work for one organization.
    pub async fn begin(&self, org: OrgId) -> Result<Unit, Error> {
        let tx = self.store.begin_command(org).await?;
        Ok(Unit {
            journal: self.clone(),
            tx,
            notifications: Vec::new(),
            grown: Vec::new(),
            claimed: Vec::new(),
            contents: Vec::new(),
        })
    }
}

impl Unit {
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

    /// Stores the response for every claimed slot. Only the first call counts.
    pub async fn keep(&mut self, response: impl FnOnce() -> (u16, Vec<u8>)) -> Result<(), Error> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let (status, body) = response();
        for claimed in self.claimed.drain(..) {
            self.tx.answer(claimed, status, &body, &self.journal.origin).await?;
        }
        Ok(())
    }

    /// Makes a session's pending turn due now. Does nothing when no turn is pending.
    ///
    /// # Errors
    /// `Rejected` when the session is archived or paused.
    pub async fn wake_up(&mut self, id: SessionId, stamp: &Stamp) -> Result<Executed, Error> {
        let executed = self.execute(id, Command::Wake, stamp).await?;
        let Session { running, queued, .. } = &executed.session;
        if (running.is_some() || queued.is_some()) && !executed.session.is_waiting() {
            self.enqueue(id).await?;
        }
        Ok(executed)
    }

    pub(super) async fn enqueue(&mut self, id: SessionId) -> Result<(), Error> {
        let due = self.tx.enqueue_turn(id).await?;
        self.is_due(due);
        Ok(())
    }

    /// Notifies a worker that a turn is due, and the one whose other job holds the session.
    fn is_due(&mut self, DueTurn { ready, worker }: DueTurn) {
        self.is_ready(ready);
        self.notifications.extend(worker.map(Notification::Control));
    }

    /// Notifies a worker of a job that became ready.
    pub(super) fn is_ready(&mut self, ready: Option<Ready>) {
        self.notifications.extend(ready.map(|Ready { node }| Notification::Job { node }));
    }

    /// Notifies the workers that hold a job of these sessions. Call it before the jobs are deleted.
    pub(super) async fn notify_holders(&mut self, sessions: &[SessionId]) -> Result<(), Error> {
        let holders = self.tx.lease_holders(sessions).await?;
        self.notifications.extend(holders.into_iter().map(Notification::Control));
        Ok(())
    }

    /// Notifies the process that sends this organization's deliveries that one is due.
    pub fn has_due_delivery(&mut self) {
        self.notifications.push(Notification::Delivery(self.tx.org()));
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
        let executed = self.execute(id, Command::Archive, stamp).await?;
        self.tx.delete_tokens(id).await?;
        self.tx.delete_scheduled_wakes(id).await?;
        Ok(executed)
    }

    /// Commits, then sends the notifications.
    pub async fn commit(mut self) -> Result<(), Error> {
        if !self.contents.is_empty() {
            self.tx.insert_event_contents(&self.contents).await?;
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

    pub(super) async fn execute_locked(
        &mut self,
        mut session: Session,
        command: Command,
        stamp: &Stamp,
    ) -> Result<Executed, Error> {
        let was_waiting = session.is_waiting();
        let open = match &session.running {
            Some(turn) if command.may_end_turn() && (was_waiting || matches!(command, Command::Archive)) => {
                self.tx.open_work(session.id, turn.id).await?
            }
            _ => OpenWork::default(),
        };
        let drafts = decide::decide(&session, &open, command, stamp)?;
        if drafts.is_empty() {
            return Ok(Executed { session, events: Vec::new() });
        }
        let (base, now) = (session.head, stamp.origin.now());
        let events = numbered(&drafts, base, now);
        let mut turns: Vec<_> = events.iter().filter_map(|event| session.apply(event).ended).collect();
        if events.iter().any(|event| matches!(event.draft.body, Body::TurnRetried { .. })) {
            turns.extend(session.queued.clone());
        }
        let by = pack(self.tx.org(), session.id, drafts)?;
        // Of a waiting turn that ended, the job is still there.
        let has_ended = was_waiting && session.running.is_none();
        let wakes = has_ended || events.iter().any(|event| wakes(event, &session));
        let is_due = session.status != Status::Archived && wakes;
        let repins = events
            .iter()
            .any(|event| matches!(event.draft.body, Body::SessionUpdated { agent_snapshot: Some(_), .. }));
        let agent_snapshot = session.created.agent_snapshot.as_ref().filter(|_| repins);
        let change = Change { session: &session, turns: &turns, base, events: &by, agent_snapshot, is_due };
        let has_settled = !turns.is_empty() || session.status == Status::Archived;
        let above = match session.created.parent_session_id.filter(|_| has_settled) {
            Some(parent) => self.tx.lock_jobs_above(parent).await?,
            None => Vec::new(),
        };
        let written = self.tx.write_back(&change).await?;
        self.grew(session.id, base, now, by, written.has_deliveries);
        if is_due {
            self.is_due(written.due);
        }
        self.close_actions(session.id, &events).await?;
        self.note_steers(session.id, &events).await?;
        self.wake(&session, &events).await?;
        self.wake_above(&above, session.id).await?;
        Ok(Executed { session, events })
    }

    /// Makes those turns of the sessions `above` continue, whose jobs are locked, that wait for this session.
    pub(super) async fn wake_above(&mut self, above: &[SessionId], id: SessionId) -> Result<(), Error> {
        for ready in self.tx.wake_above(above, id).await? {
            self.is_ready(Some(ready));
        }
        Ok(())
    }

    /// Writes the side effects that the events require.
    async fn wake(&mut self, session: &Session, events: &[Event]) -> Result<(), Error> {
        if session.status == Status::Archived {
            self.notify_holders(&[session.id]).await?;
            let ready = self.tx.enqueue_cleanup(session.id).await?;
            self.is_ready(ready);
            self.tx.cancel_operations(session.id).await?;
            return Ok(());
        }
        if events.iter().any(|event| matches!(event.draft.body, Body::SessionPaused {})) {
            self.tx.pause_sandbox(session.id).await?;
            self.notify_holders(&[session.id]).await?;
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
            self.notify_holders(&[session.id]).await?;
        }
        Ok(())
    }

    pub(super) fn grew(
        &mut self,
        session: SessionId,
        base: i64,
        ts: Timestamp,
        mut by: Vec<Packed>,
        has_deliveries: bool,
    ) {
        self.contents.extend(take_contents(self.tx.org(), session, &mut by));
        self.grown.push(Grown { session, base, ts, by });
        self.notifications.push(Notification::List(self.tx.org()));
        if has_deliveries {
            self.has_due_delivery();
        }
    }
}

/// Returns whether a worker must process the session.
///
/// A turn that waits for a timer holds no worker, and a cancel must reach one. Input waits for a turn that waits for
/// actions.
fn wakes(event: &Event, session: &Session) -> bool {
    match event.draft.body {
        Body::UserMessage { .. } => !session.is_waiting(),
        Body::HistoryCompactionRequested(_) => event.draft.turn_id.is_some(),
        Body::TurnCancelRequested { .. } | Body::TurnRetried { .. } => true,
        _ => false,
    }
}

pub(super) fn numbered(drafts: &[Draft], base: i64, ts: Timestamp) -> Vec<Event> {
    (base + 1..).zip(drafts).map(|(seq, draft)| Event { seq, ts, draft: draft.clone() }).collect()
}
