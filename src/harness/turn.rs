//! One turn, from its start to its yield.

use std::{collections::HashSet, sync::Arc};

use serde_json::Map;
use tokio::sync::watch;

use super::{
    Halt, Journal, Model, Signals, Tools,
    limits::{self, Trip},
    next::{Finish, Next, next},
};
use crate::{
    base::{Origin, Timestamp},
    domain::{
        Actor, Event, EventId, Level, Session, TurnId, Usage,
        conversation::ModelOptions,
        event::{Body, Draft, Outcome, TurnCompleted},
        tool::ToolCall,
        turn::{TurnError, YieldReason},
    },
};

/// The turn to run and what it is run with.
pub struct Turn {
    pub id: TurnId,
    /// Crashes it has survived, plus one.
    pub attempt: i32,
    pub model: Arc<dyn Model>,
    /// Model name without its provider.
    pub model_name: String,
    pub prompt: String,
    pub options: ModelOptions,
    /// The model reads input objects as JSON.
    pub objects: bool,
}

/// What the turn reaches the world through.
pub struct Ports<'a> {
    pub journal: &'a dyn Journal,
    pub tools: &'a dyn Tools,
    pub origin: &'a Origin,
    pub signals: watch::Receiver<Signals>,
}

/// Why something under way was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    Lost,
    Canceled,
    Deadline,
}

pub(super) struct Run<'a> {
    pub turn: Turn,
    pub ports: Ports<'a>,
    pub session: Session,
    pub log: Vec<Event>,
    /// Calls that this run announced itself; all others may have run before.
    pub fresh: HashSet<String>,
}

/// Runs the turn until it yields.
///
/// Returns `Ok` when `turn.completed` is in the log. Dropping the future between
/// two appends loses nothing: the log says where to go on.
///
/// # Errors
/// Every [`Halt`] leaves the turn open for whoever holds the session next.
pub async fn run(turn: Turn, ports: Ports<'_>) -> Result<(), Halt> {
    let session = ports.journal.session().await?;
    let log = ports.journal.log().await?;
    let mut run = Run { turn, ports, session, log, fresh: HashSet::new() };
    loop {
        let ended = match run.checkpoint()? {
            Some(interrupt) => run.give_up(interrupt).await?,
            None => run.advance().await?,
        };
        if ended {
            return Ok(());
        }
    }
}

impl Run<'_> {
    /// Does the next thing. Returns whether the turn is over.
    async fn advance(&mut self) -> Result<bool, Halt> {
        match next(&self.log, self.turn.id, self.turn.attempt) {
            Next::Start => self.start().await,
            Next::Ask { failures } => self.step(failures).await,
            Next::Run(calls) => self.run_tools(calls).await,
            Next::Finish(finish) => self.finish(finish).await,
        }
    }

    async fn start(&mut self) -> Result<bool, Halt> {
        let resumed = self.session.running.as_ref().filter(|turn| turn.id == self.turn.id);
        let queued = self.session.queued.as_ref().filter(|turn| turn.id == self.turn.id);
        if resumed.is_none()
            && let Some(trip) = limits::forbids_start(&self.session)
        {
            return self.end_by(trip).await;
        }
        let Some(window) = resumed.or(queued) else { return Err(Halt::Stale) };
        let body = Body::TurnStarted {
            turn_id: self.turn.id,
            input_from_seq: window.input_from_seq,
            input_to_seq: window.input_to_seq,
            attempt: self.turn.attempt,
        };
        let started = self.draft(body, Actor::system());
        self.record(vec![started]).await?;
        Ok(false)
    }

    async fn finish(&mut self, finish: Finish) -> Result<bool, Halt> {
        let error = |code: &str, message: &str| {
            Some(TurnError { code: code.to_owned(), message: message.to_owned() })
        };
        let (reason, error) = match finish {
            Finish::Completed => (YieldReason::Completed, None),
            Finish::Asked => (YieldReason::NeedsInput, None),
            Finish::Refused => (YieldReason::Error, error("model_refusal", "the model declined to answer")),
            Finish::CutShort => (
                YieldReason::Error,
                error(
                    "max_output_tokens",
                    "the answer ran into max_tokens; raise it in the agent's model_options",
                ),
            ),
        };
        self.end(reason, error, None, Vec::new()).await
    }

    /// Looks at the signals between two things to do.
    fn checkpoint(&self) -> Result<Option<Interrupt>, Halt> {
        let signals = *self.ports.signals.borrow();
        if signals.lost {
            return Err(Halt::Stale);
        }
        let late = self.deadline().is_some_and(|deadline| self.ports.origin.now() >= deadline);
        if signals.cancel || late {
            return Ok(Some(if signals.cancel { Interrupt::Canceled } else { Interrupt::Deadline }));
        }
        if signals.drain { Err(Halt::Drained) } else { Ok(None) }
    }

    /// Resolves when something under way must be given up.
    ///
    /// Cancel-safe: it only looks.
    pub(super) async fn interrupted(&self) -> Interrupt {
        let mut signals = self.ports.signals.clone();
        let deadline = async {
            match self.deadline() {
                Some(deadline) => {
                    let left = deadline - self.ports.origin.now();
                    tokio::time::sleep(left.try_into().unwrap_or_default()).await;
                }
                None => std::future::pending().await,
            }
        };
        let signaled = async {
            match signals.wait_for(|signals| signals.lost || signals.cancel).await {
                Ok(signals) if !signals.lost => Interrupt::Canceled,
                // The sender is gone with the lease.
                Ok(_) | Err(_) => Interrupt::Lost,
            }
        };
        tokio::select! {
            interrupt = signaled => interrupt,
            () = deadline => Interrupt::Deadline,
        }
    }

    /// Ends the turn for an interrupt: what was started is ended first.
    pub(super) async fn give_up(&mut self, interrupt: Interrupt) -> Result<bool, Halt> {
        let (reason, limit) = match interrupt {
            Interrupt::Lost => return Err(Halt::Stale),
            Interrupt::Canceled => (YieldReason::Canceled, None),
            Interrupt::Deadline => (YieldReason::DeadlineExceeded, Some("turn_seconds")),
        };
        let open = match next(&self.log, self.turn.id, self.turn.attempt) {
            Next::Run(calls) => calls,
            Next::Start | Next::Ask { .. } | Next::Finish(_) => Vec::new(),
        };
        for call in &open {
            self.ports.tools.cancel(call).await;
        }
        let results = open.into_iter().map(|call| self.canceled_result(call, reason)).collect();
        self.end(reason, None, limit, results).await
    }

    /// Ends the turn for a limit, unless the limit has been raised meanwhile.
    pub(super) async fn end_by(&mut self, trip: Trip) -> Result<bool, Halt> {
        let body =
            Body::LimitExceeded { limit: trip.limit.to_owned(), used: trip.used, allowed: trip.allowed };
        let exceeded = self.draft(body, Actor::system());
        self.end(trip.reason, None, Some(trip.limit), vec![exceeded]).await
    }

    /// Ends the turn with an error.
    pub(super) async fn fail(
        &mut self,
        code: &str,
        message: String,
        before: Vec<Draft>,
    ) -> Result<bool, Halt> {
        let error = TurnError { code: code.to_owned(), message };
        self.end(YieldReason::Error, Some(error), None, before).await
    }

    async fn end(
        &mut self,
        reason: YieldReason,
        error: Option<TurnError>,
        limit: Option<&str>,
        before: Vec<Draft>,
    ) -> Result<bool, Halt> {
        let did_something = self.own_events().any(|event| matches!(event.draft.body, Body::StepCompleted(_)));
        let completed = TurnCompleted {
            turn_id: self.turn.id,
            yield_reason: reason,
            result_event_id: self.result(),
            usage: self.usage(),
            active_seconds: self.active_seconds(),
            failed: error.is_some() && !did_something,
            error,
            limit: limit.map(str::to_owned),
        };
        let mut drafts = before;
        drafts.push(self.draft(Body::TurnCompleted(Box::new(completed)), Actor::system()));
        self.record(drafts).await?;
        Ok(true)
    }

    /// Appends events and remembers them as part of the log.
    pub(super) async fn record(&mut self, drafts: Vec<Draft>) -> Result<(), Halt> {
        let events = self.ports.journal.record(drafts).await?;
        self.log.extend(events);
        Ok(())
    }

    pub(super) fn draft(&self, body: Body, actor: Actor) -> Draft {
        Draft {
            id: self.ports.origin.id(),
            actor,
            level: body.level(),
            turn_id: Some(self.turn.id),
            step_id: None,
            refs: Map::new(),
            body,
        }
    }

    /// What the turn has used so far.
    pub(super) fn usage(&self) -> Usage {
        crate::domain::delta::Delta::of(self.own_events().map(|event| &event.draft)).usage
    }

    /// What the session has used so far, this turn included.
    pub(super) fn session_usage(&self) -> Usage {
        let before = crate::domain::delta::Delta::of(self.log.iter().map(|event| &event.draft));
        before.usage
    }

    pub(super) fn own_events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.log.iter().filter(|event| event.draft.turn_id == Some(self.turn.id))
    }

    /// When the turn must be over.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.session.created.limits.turn_seconds?;
        Some(self.started_at()? + std::time::Duration::from_secs(seconds))
    }

    fn canceled_result(&self, call: ToolCall, reason: YieldReason) -> Draft {
        let why = if reason == YieldReason::Canceled { "canceled" } else { "ended by its deadline" };
        let body = Body::ToolResult {
            call_id: call.call_id,
            tool: call.tool,
            output: format!(
                "The turn was {why} before this tool finished; whatever it had started was stopped."
            ),
            is_error: true,
            outcome: Outcome::Unknown,
            duration_ms: 0,
        };
        self.draft(body, Actor::system())
    }

    fn started_at(&self) -> Option<Timestamp> {
        self.own_events()
            .find(|event| matches!(event.draft.body, Body::TurnStarted { .. }))
            .map(|event| event.ts)
    }

    fn active_seconds(&self) -> u64 {
        let active = self.started_at().map(|start| (self.ports.origin.now() - start).whole_seconds());
        active.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default()
    }

    fn result(&self) -> Option<EventId> {
        let is_result = |event: &&Event| {
            event.draft.level == Level::User && matches!(event.draft.body, Body::AgentMessage { .. })
        };
        self.own_events().rfind(is_result).map(|event| event.draft.id)
    }
}
