//! In-memory database: row and log of one session, with the fence of `store::record`.
//!
//! A caller's command goes through `decide` and `apply`; a leased turn goes through the rules of the fenced
//! statement, on the row alone. After each append the row must equal the fold of the log by `apply`.

use std::time::Duration;

use sojourn::{
    base::Timestamp,
    domain::{
        Event, SandboxId, Session, SessionId, Status, Turn, TurnId,
        apply::fold,
        decide::{self, Command, NewSession, QueuedMessage, Rejection, Stamp},
        delta::{Delta, Start},
        event::{Body, Draft, TurnCompleted},
        log_fold::ReadTo,
        open_work::OpenWork,
        session::Limits,
        turn::TurnState,
    },
};

use super::{
    lease::{Lease, WorkerId},
    ledger::Ledger,
};

/// Tables of one session.
pub struct Database {
    /// The row; turns write it by differences.
    pub session: Session,
    /// Rows of ended turns.
    ended: Vec<Turn>,
    pub log: Vec<Event>,
    /// JSON of a fold of the first events of the log; may be damaged.
    pub stored_fold: Option<String>,
    pub lease: Lease,
    /// The sandbox that is recorded in the rows.
    pub sandbox: Option<SandboxId>,
    /// Fold of the log by `apply`.
    folded: Session,
    folded_ended: Vec<Turn>,
    pub ledger: Ledger,
    /// Number of writes that the fence refused.
    pub refused: u64,
}

/// Right to write, as the database checks it.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    pub epoch: i64,
    pub worker: WorkerId,
    pub turn: TurnId,
}

/// Outcome of a fenced append.
#[derive(Clone, Debug)]
pub enum Recorded {
    Appended(Vec<Event>),
    Stale,
    Moved,
}

impl Database {
    /// Creates a database with one new session.
    pub fn with(id: SessionId, new: NewSession, stamp: &Stamp, now: Duration, ledger: Ledger) -> Self {
        let events = number(decide::create(new, stamp), 0, stamp.origin.now());
        let (session, _) = fold(id, &events).expect("a log begins with session.created");
        let mut lease = Lease::default();
        if session.queued.is_some() {
            lease.enqueue(now);
        }
        let mut database = Self {
            folded: session.clone(),
            session,
            ended: Vec::new(),
            log: Vec::new(),
            stored_fold: None,
            lease,
            sandbox: None,
            folded_ended: Vec::new(),
            ledger,
            refused: 0,
        };
        for event in events {
            database.ledger.note(&event, &[], Limits::default());
            database.log.push(event);
        }
        database
    }

    /// A caller's command, as `journal::Unit` executes it.
    pub fn execute(&mut self, command: Command, stamp: &Stamp, now: Duration) -> Result<usize, Rejection> {
        let was_waiting = self.session.is_waiting();
        let open = match &self.session.running {
            Some(turn) if command.may_end_turn() && (was_waiting || matches!(command, Command::Archive)) => {
                open_work(&self.log, turn.id)
            }
            _ => OpenWork::default(),
        };
        let drafts = decide::decide(&self.session, &open, command, stamp)?;
        let events = number(drafts, self.session.head, stamp.origin.now());
        for event in &events {
            let effects = self.session.apply(event);
            self.ended.extend(effects.ended);
            self.ended.retain(|turn| !is_retried(event, turn));
        }
        let wakes = |event: &Event| {
            matches!(event.draft.body, Body::TurnCancelRequested { .. } | Body::TurnRetried { .. })
                || (matches!(event.draft.body, Body::UserMessage { .. }) && !self.session.is_waiting())
                || (matches!(event.draft.body, Body::HistoryCompactionRequested(_))
                    && event.draft.turn_id.is_some())
        };
        let has_ended = was_waiting && self.session.running.is_none();
        if self.session.status == Status::Archived && !events.is_empty() {
            self.lease.close();
        } else if has_ended || events.iter().any(wakes) {
            self.lease.enqueue(now);
        }
        let count = events.len();
        self.append(events);
        Ok(count)
    }

    /// The running turn reads what steers it, as `journal::Writer` does.
    pub fn read_steers(&mut self, fence: Fence, stamp: &Stamp, now: Duration) -> Recorded {
        if self.lease.epoch != fence.epoch || self.session.status == Status::Archived {
            self.refused += 1;
            return Recorded::Stale;
        }
        if self.session.running.as_ref().is_none_or(|running| running.id != fence.turn) {
            return Recorded::Moved;
        }
        let queued = self.session.queued.as_ref().map(|queued| queued.id);
        let is_read = |seq: i64| {
            let read = |event: &Event| matches!(&event.draft.body, Body::TurnSteered { seqs, .. } if seqs.contains(&seq));
            self.log.iter().any(read)
        };
        let waiting = self.log.iter().filter(|event| event.draft.turn_id == queued && !is_read(event.seq));
        let message = |event: &Event| match event.draft.body {
            Body::UserMessage { steers, .. } => Some(QueuedMessage { seq: event.seq, steers }),
            _ => None,
        };
        let messages = waiting.filter_map(message).collect();
        self.execute(Command::ReadSteers(messages), stamp, now).expect("a worker is never refused");
        Recorded::Appended(Vec::new())
    }

    /// Append of a leased turn: the fenced statement, clause by clause.
    ///
    /// `drafts` are the events, and how far the turn has read what callers sent it.
    pub fn record(
        &mut self,
        fence: Fence,
        (drafts, read_to): (Vec<Draft>, ReadTo),
        ts: Timestamp,
        now: Duration,
    ) -> Recorded {
        let needs = |depends: fn(&Body) -> bool| drafts.iter().any(|draft| depends(&draft.body));
        let has_read = (!needs(Body::depends_on_actions) || self.session.action_head <= read_to.actions)
            && (!needs(Body::depends_on_steers) || self.session.steer_head <= read_to.steers);
        let delta = Delta::of(&drafts);
        if self.lease.epoch != fence.epoch || self.session.status == Status::Archived {
            self.refused += 1;
            return Recorded::Stale;
        }
        let is_canceled = delta.wait.is_some() && self.session.cancel_turn_id == Some(fence.turn);
        if !self.fits(fence.turn, &delta) || !has_read || is_canceled {
            return Recorded::Moved;
        }
        let events = number(drafts, self.session.head, ts);
        let row = &mut self.session;
        row.head += events.len() as i64;
        row.updated_at = ts;
        row.usage += delta.usage;
        if let Some(start) = delta.start {
            self.start(start, ts);
        }
        let row = &mut self.session;
        if let Some(turn) = row.running.as_mut().filter(|turn| turn.id == fence.turn) {
            turn.usage += delta.usage;
            if delta.resumes {
                (turn.state, row.status) = (TurnState::Running, Status::Running);
                row.waits_for.clear();
            }
            if let Some(wait) = delta.wait {
                (turn.state, row.status) = (TurnState::Waiting, wait.status);
                turn.active_seconds = wait.active_seconds;
                let span: Duration = (wait.expires_at - ts).try_into().unwrap_or_default();
                // A session changes before the end of the time, and perhaps not enough.
                let span = if wait.sessions.is_empty() { span } else { span / 2 };
                row.waits_for = wait.sessions;
                self.lease.wait(fence.worker, now + span);
            }
        }
        if let Some(end) = &delta.end {
            self.end(fence.turn, end, ts);
            self.lease.finish(fence.worker, now, self.session.queued.is_some());
        }
        self.append(events.clone());
        Recorded::Appended(events)
    }

    /// Records a sandbox before it is created; refused after the lease was lost.
    pub fn begin_sandbox(&mut self, id: SandboxId, epoch: i64) -> bool {
        let holds = self.lease.epoch == epoch;
        if holds {
            self.sandbox = Some(id);
        }
        holds
    }

    /// Whether the row matches the assumptions of the events.
    fn fits(&self, turn: TurnId, delta: &Delta) -> bool {
        let row = &self.session;
        let is_running = row.running.as_ref().is_some_and(|running| running.id == turn);
        let is_next = row.running.is_none() && row.queued.as_ref().is_some_and(|queued| queued.id == turn);
        let starts = match delta.start {
            None => true,
            Some(start) if is_next => row.input_head == start.input_to_seq,
            Some(start) => start.attempt > 1 && is_running,
        };
        // No event is written for an ended turn.
        starts && (is_running || is_next)
    }

    fn start(&mut self, start: Start, ts: Timestamp) {
        let row = &mut self.session;
        row.status = Status::Running;
        row.turns += i64::from(start.attempt == 1);
        if row.running.is_none() {
            row.input_cursor = start.input_to_seq;
            row.running = row.queued.take();
        }
        let turn = row.running.as_mut().expect("checked by the fence");
        turn.state = TurnState::Running;
        turn.attempt = start.attempt;
        if start.attempt == 1 {
            turn.started_at = Some(ts);
        }
    }

    fn end(&mut self, id: TurnId, end: &TurnCompleted, ts: Timestamp) {
        let row = &mut self.session;
        let was_running = row.running.as_ref().is_some_and(|turn| turn.id == id);
        row.status = if was_running && row.queued.is_some() { Status::Queued } else { end.idle_status() };
        let mut turn = if was_running {
            row.running.take().expect("read above")
        } else {
            row.input_cursor = row.input_head;
            row.queued.take().expect("checked by the fence")
        };
        row.cancel_turn_id.take_if(|canceled| *canceled == id);
        if was_running {
            row.waits_for.clear();
        }
        turn.state = end.yield_reason.state();
        turn.completed_at = Some(ts);
        turn.yield_reason = Some(end.yield_reason);
        turn.result_event_id = end.result_event_id;
        turn.error.clone_from(&end.error);
        turn.active_seconds = end.active_seconds;
        row.active_seconds += end.active_seconds;
        row.ended = Some(turn.clone());
        self.ended.push(turn);
    }

    fn append(&mut self, events: Vec<Event>) {
        for event in events {
            assert_eq!(event.seq, self.log.len() as i64 + 1, "the log has a gap");
            self.ledger.note(&event, &self.log, self.folded.created.limits);
            let effects = self.folded.apply(&event);
            self.folded_ended.extend(effects.ended);
            self.folded_ended.retain(|turn| !is_retried(&event, turn));
            self.log.push(event);
        }
        assert_eq!(self.session, self.folded, "the row is not the fold of its log");
        assert_eq!(self.ended, self.folded_ended, "a turn's row is not the fold of its log");
    }

    /// Whether no work is pending.
    pub fn is_settled(&self) -> bool {
        let row = &self.session;
        let is_at_rest = match row.status {
            Status::Queued | Status::Running => false,
            Status::AwaitingInput | Status::Idle | Status::Failed | Status::Archived => true,
        };
        is_at_rest && row.running.is_none() && row.queued.is_none() && self.lease.job.is_none()
    }

    /// Invariants once no work is pending.
    pub fn check_at_rest(&self) {
        let (folded, ended) = fold(self.session.id, &self.log).expect("a log begins with session.created");
        assert_eq!(self.session, folded, "the row is not the fold of the whole log");
        assert_eq!(self.ended, ended, "the turns' rows are not the fold of the whole log");
        assert_eq!(self.session.cancel_turn_id, None, "a cancel outlived its turn");
        assert!(!self.session.is_pending() || self.session.status == Status::Archived, "input was lost");
        self.ledger.check_at_rest();
    }
}

/// Whether the event queues a turn again, which is then no ended one.
fn is_retried(event: &Event, turn: &Turn) -> bool {
    matches!(event.draft.body, Body::TurnRetried { turn_id, .. } if turn_id == turn.id)
}

fn number(drafts: Vec<Draft>, base: i64, ts: Timestamp) -> Vec<Event> {
    (base + 1..).zip(drafts).map(|(seq, draft)| Event { seq, ts, draft }).collect()
}

/// The calls of a turn without a result, as `store::event` reads them.
pub fn open_work(log: &[Event], turn: TurnId) -> OpenWork {
    let mut open = OpenWork::default();
    for event in log.iter().filter(|event| event.draft.turn_id == Some(turn)) {
        let body = &event.draft.body;
        if matches!(body, Body::StepCompleted(_)) {
            open = OpenWork::default();
        }
        let json = serde_json::to_value(body).expect("a body is JSON")["body"].to_string();
        open.take(body.type_name(), &json).expect("the body is of its type");
    }
    open
}
