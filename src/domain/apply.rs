//! Effect of each event on a session; the counterpart of `decide`.
//!
//! `fold(log)` equals the session's row. For a leased turn, the journal updates the row with deltas
//! in SQL; a property test verifies that both give the same row.

use super::{
    context::Context,
    delta::{Wait, exec_ms},
    event::{
        ActorKind, Body, CancelMode, Event, TurnCompleted, action_events, error_events, history_events,
        informational, mcp_events,
    },
    ids::*,
    session::{Created, Hold, Session, Status, Stopped},
    turn::{Turn, TurnState, YieldReason},
    usage::Usage,
};

impl Session {
    /// Creates the session from its first event.
    pub fn from_created(id: SessionId, event: &Event, created: &Created) -> Self {
        Self {
            id,
            created: created.clone(),
            status: Status::Idle,
            head: event.seq,
            input_cursor: 0,
            input_head: 0,
            running: None,
            queued: None,
            action_head: 0,
            steer_head: 0,
            agent_head: 0,
            waits_for: Vec::new(),
            cancel_turn_id: None,
            ended: None,
            actor: event.draft.actor.clone(),
            stopped: None,
            hold: None,
            context: Context::default(),
            turns: 0,
            active_seconds: 0,
            exec_ms: 0,
            usage: Usage::default(),
            created_at: event.ts,
            updated_at: event.ts,
        }
    }

    /// Applies one more event; `seq` must be the next one.
    pub fn apply(&mut self, event: &Event) -> Effects {
        debug_assert_eq!(event.seq, self.head + 1, "an event was skipped or repeated");
        self.head = event.seq;
        self.updated_at = event.ts;
        let mut effects = Effects::default();
        if event.draft.body.ends_action() {
            self.action_head = event.seq;
        }
        match &event.draft.body {
            Body::SessionUpdated { .. } => self.update(event),
            Body::SessionStatusChanged { to, .. } => {
                self.status = *to;
                self.stopped = Some(Stopped::by(event));
            }
            Body::SessionStarted {} => {
                self.hold = None;
                if self.has_lost_sandbox() {
                    self.status = Status::Idle;
                }
            }
            Body::SessionResumed {} => self.hold = None,
            Body::SessionPaused {} => self.hold = Some(Hold::Paused),
            Body::SessionStopped { reason } => self.hold_stopped(event, reason.clone()),
            Body::SessionCanceled {} => {
                self.hold = Some(Hold::Canceled);
                self.stopped = Some(Stopped::by(event));
            }
            Body::ExecStarted { .. } => drop(self.hold.take_if(|hold| *hold == Hold::Canceled)),
            Body::ExecCompleted { .. } => self.exec_ms += exec_ms(&event.draft.body),
            Body::SandboxRotationFailed { failed, .. } => {
                if *failed && self.status == Status::Idle {
                    self.status = Status::Failed;
                }
            }
            Body::SessionContextUpdated(change) => self.context.apply(change),
            Body::UserMessage { steers, .. } => self.take_input(event, *steers),
            Body::HistoryCompactionRequested(_) if event.draft.turn_id.is_some() => {
                self.take_input(event, false)
            }
            Body::TurnSteered { from_turn_id, from_is_empty: true, .. } => self.take_queued(*from_turn_id),
            Body::TurnCancelRequested { turn_id, mode } => {
                self.cancel_turn_id = Some(*turn_id);
                if *mode == CancelMode::Cancel {
                    self.stopped = Some(Stopped::by(event));
                }
            }
            Body::TurnStarted { turn_id, input_to_seq, attempt, .. } => {
                self.start_turn(*turn_id, *input_to_seq, *attempt, event);
            }
            Body::TurnWaiting { .. } => self.wait(&event.draft.body),
            Body::TurnResumed { .. } => self.resume_turn(),
            Body::TurnRetried { turn_id, .. } => self.retry_turn(*turn_id),
            Body::TurnCompleted(completed) => effects.ended = self.end_turn(completed, event),
            Body::SessionCreated(_)
            | Body::SessionRejected { .. }
            | Body::AgentMessage { .. }
            | Body::AgentThinking { .. }
            | history_events!()
            | Body::StepCompleted(_)
            | Body::StepAborted(_)
            | Body::ToolCall { .. }
            | Body::ToolResult { .. }
            | Body::TurnSteered { .. }
            | action_events!()
            | error_events!()
            | mcp_events!()
            | informational!() => {}
        }
        self.add_usage(event.draft.turn_id, Usage::of(&event.draft));
        effects
    }

    fn hold_stopped(&mut self, event: &Event, reason: Option<String>) {
        self.hold = Some(Hold::Stopped);
        self.stopped = Some(Stopped { reason, ..Stopped::by(event) });
    }

    fn update(&mut self, event: &Event) {
        self.created.update(&event.draft.body);
        if matches!(event.draft.body, Body::SessionUpdated { agent_snapshot: Some(_), .. }) {
            self.agent_head = event.seq;
        }
    }

    fn take_input(&mut self, event: &Event, steers: bool) {
        self.input_head = event.seq;
        if steers {
            self.steer_head = event.seq;
        }
        self.release_hold();
        let Some(turn_id) = event.draft.turn_id else { return };
        match &mut self.queued {
            Some(queued) => queued.input_to_seq = event.seq,
            None => self.queued = Some(Turn::queued(turn_id, event.seq)),
        }
        self.becomes_queued();
    }

    /// Queues the turn that ended last again. Until it ends, it is not among the ended ones.
    fn retry_turn(&mut self, turn_id: TurnId) {
        let Some(ended) = self.ended.take_if(|turn| turn.id == turn_id) else { return };
        self.active_seconds = self.active_seconds.saturating_sub(ended.active_seconds);
        self.queued = Some(ended.requeued(self.input_head));
        self.release_hold();
        self.becomes_queued();
    }

    /// Releases a stop or a cancel, because the sender of new work wants it processed.
    fn release_hold(&mut self) {
        self.hold.take_if(|hold| matches!(hold, Hold::Stopped | Hold::Canceled));
    }

    fn becomes_queued(&mut self) {
        match self.status {
            // The running turn waits; the input waits for its end.
            Status::AwaitingInput if self.running.is_some() => {}
            Status::Idle | Status::Failed | Status::AwaitingInput => self.status = Status::Queued,
            Status::Queued | Status::Running | Status::Archived => {}
        }
    }

    /// The queued turn is gone: the running one has read its messages.
    fn take_queued(&mut self, queued: TurnId) {
        if let Some(emptied) = self.queued.take_if(|turn| turn.id == queued) {
            self.input_cursor = emptied.input_to_seq;
        }
    }

    fn start_turn(&mut self, turn_id: TurnId, input_to_seq: i64, attempt: i32, event: &Event) {
        if let Some(mut turn) = self.queued.take_if(|turn| turn.id == turn_id) {
            turn.state = TurnState::Running;
            turn.started_at.get_or_insert(event.ts);
            turn.input_to_seq = input_to_seq;
            self.running = Some(turn);
            self.input_cursor = input_to_seq;
            self.turns += i64::from(attempt == 1);
            self.status = Status::Running;
        }
        if let Some(running) = &mut self.running {
            running.attempt = attempt;
        }
    }

    fn wait(&mut self, wait: &Body) {
        let Body::TurnWaiting { action_ids, session_ids, active_seconds, .. } = wait else { return };
        if let Some(running) = &mut self.running {
            (running.state, running.active_seconds) = (TurnState::Waiting, *active_seconds);
            self.status = Wait::status_of(action_ids);
            self.waits_for.clone_from(session_ids);
        }
    }

    fn resume_turn(&mut self) {
        self.waits_for.clear();
        if let Some(running) = &mut self.running {
            running.state = TurnState::Running;
            self.status = Status::Running;
        }
    }

    fn add_usage(&mut self, turn_id: Option<TurnId>, usage: Usage) {
        self.usage += usage;
        if let Some(running) = self.running.as_mut().filter(|turn| Some(turn.id) == turn_id) {
            running.usage += usage;
        }
    }

    fn end_turn(&mut self, completed: &TurnCompleted, event: &Event) -> Option<Turn> {
        let id = completed.turn_id;
        let slot = if self.running.as_ref().is_some_and(|turn| turn.id == id) {
            &mut self.running
        } else {
            &mut self.queued
        };
        let mut turn = slot.take_if(|turn| turn.id == id)?;
        if self.running.is_none() {
            self.waits_for.clear();
        }
        // A turn that ends before it started has consumed its input too.
        self.input_cursor = self.input_cursor.max(turn.input_to_seq);
        turn.state = completed.yield_reason.state();
        turn.yield_reason = Some(completed.yield_reason);
        turn.completed_at = Some(event.ts);
        turn.result_event_id = completed.result_event_id;
        turn.error.clone_from(&completed.error);
        turn.active_seconds = completed.active_seconds;
        self.active_seconds += completed.active_seconds;
        self.cancel_turn_id.take_if(|canceled| *canceled == id);
        // Ended by a caller. If a worker ends a turn, the caller's request is an earlier event.
        if matches!(event.draft.actor.kind, ActorKind::Human | ActorKind::Trigger) {
            self.stopped = Some(Stopped::by(event));
        }
        self.ended = Some(turn.clone());
        if self.running.is_none() {
            self.status = match &self.queued {
                Some(_) => Status::Queued,
                None => completed.idle_status(),
            };
        }
        Some(turn)
    }
}

impl Created {
    /// Applies `session.updated`.
    fn update(&mut self, change: &Body) {
        let Body::SessionUpdated { title, slug, metadata, limits, agent_snapshot } = change else { return };
        slug.iter().for_each(|slug| self.slug.clone_from(slug));
        title.iter().for_each(|title| self.title.clone_from(title));
        metadata.iter().for_each(|metadata| self.metadata.clone_from(metadata));
        limits.iter().for_each(|limits| self.limits = *limits);
        agent_snapshot.iter().for_each(|agent| self.agent_snapshot = Some((**agent).clone()));
    }
}

impl Stopped {
    fn by(event: &Event) -> Self {
        Self { by: event.draft.actor.clone(), at: event.ts, reason: None }
    }
}

impl TurnCompleted {
    /// Returns the session's status after this turn when no input is queued.
    pub fn idle_status(&self) -> Status {
        match self.yield_reason {
            YieldReason::NeedsInput | YieldReason::RequiresAction => Status::AwaitingInput,
            YieldReason::Error if self.failed => Status::Failed,
            YieldReason::Error
            | YieldReason::OutputInvalid
            | YieldReason::Completed
            | YieldReason::BudgetExceeded
            | YieldReason::DeadlineExceeded
            | YieldReason::MaxTurns
            | YieldReason::Canceled => Status::Idle,
        }
    }
}

/// Effects of an event outside the session itself.
#[derive(Debug, Default)]
pub struct Effects {
    /// A turn that ended, in its final form.
    pub ended: Option<Turn>,
}

/// Folds a whole log into the session and its ended turns, in the order of their ends.
///
/// Returns `None` if the log does not begin with `session.created`.
pub fn fold<'a>(id: SessionId, log: impl IntoIterator<Item = &'a Event>) -> Option<(Session, Vec<Turn>)> {
    let mut log = log.into_iter();
    let first = log.next()?;
    let Body::SessionCreated(created) = &first.draft.body else { return None };
    let mut session = Session::from_created(id, first, created);
    let mut turns: Vec<Turn> = Vec::new();
    for event in log {
        if let Body::TurnRetried { turn_id, .. } = event.draft.body
            && let Some(at) = turns.iter().rposition(|turn| turn.id == turn_id)
        {
            turns.remove(at);
        }
        turns.extend(session.apply(event).ended);
    }
    Some((session, turns))
}
