//! Execution of one turn, from its start to its yield.

use std::{collections::HashSet, sync::Arc};

use serde_json::Map;
use tokio::sync::watch;

use super::{
    Halt, Journal, Model, Signals, Tools,
    limits::{self, ExceededLimit, Tally},
    next::{Finish, Next, next},
};
use crate::{
    base::{Origin, Timestamp},
    domain::{
        Actor, EventId, Level, Session, TurnId, Usage,
        budget::Budget,
        compaction::CompactionSettings,
        conversation::ModelOptions,
        event::{Body, Draft, Outcome, TurnCompleted},
        exit::PreparationFailure,
        log_fold::{LogFold, TurnFold},
        price::{SandboxSize, Tariff},
        repetition::Repetition,
        turn::{TurnError, YieldReason},
        turn_settings::LoopSettings,
    },
};

/// The turn to run and its configuration.
pub struct Turn {
    pub id: TurnId,
    /// Number of crashes it has survived and of its retries, plus 1.
    pub attempt: i32,
    /// The model of the agent, then those that are called while it is not available; not empty.
    pub models: Vec<TurnModel>,
    pub prompt: String,
    /// Consequence of making the same calls again and again.
    pub loops: LoopSettings,
    /// Rejected outputs before it ends, if it needs an output.
    pub output_repairs: Option<u32>,
    /// `seq` of the event that has its agent; 0 for that of the session's creation.
    pub agent_seq: i64,
    /// Shortening of the history.
    pub compaction: CompactionSettings,
    /// Priced resources of the sandbox.
    pub size: SandboxSize,
    /// No spend cap and no balance applied when the turn was prepared: the first model call need not
    /// check again.
    pub is_unbound: bool,
}

/// A model of a turn.
pub struct TurnModel {
    pub model: Arc<dyn Model>,
    /// Name without its provider.
    pub name: String,
    pub options: ModelOptions,
    /// Context window, in tokens, if it is known.
    pub window: Option<u64>,
    /// Prices of its calls, and of the commands and the fee of the turn, which are the same for all models.
    pub tariff: Tariff,
}

impl TurnModel {
    /// Returns its name as `provider/model`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.model.provider(), self.name)
    }
}

/// The turn's interfaces to the outside.
pub struct Ports<'a> {
    pub journal: &'a dyn Journal,
    pub tools: &'a dyn Tools,
    pub origin: &'a Origin,
    pub signals: watch::Receiver<Signals>,
}

/// Error code of a turn whose tools got no sandbox.
pub(super) const NO_SANDBOX: &str = "sandbox_unavailable";

/// Words of a turn without an output that fits.
const OUTPUT_INVALID: &str = "the agent submitted no output that fits the schema; the events `output.rejected` have the faults, and \
     `output_repairs` allows more attempts";

pub(super) struct Run<'a> {
    pub turn: Turn,
    pub ports: Ports<'a>,
    pub session: Session,
    /// Whether the session was read when this run began, and no call has run since.
    pub(super) is_row_new: bool,
    pub fold: LogFold,
    /// `seq` of the last event up to which the fold is known to be complete.
    pub(super) head: i64,
    pub tally: Tally,
    /// Limits that the session shares with its ancestors and descendants, as last read.
    pub budgets: Vec<Budget>,
    /// Calls that this run announced; all others may have run before.
    pub fresh: HashSet<String>,
    /// Models that asked not to be called before a time.
    pub not_before: Vec<(String, Timestamp)>,
}

/// Runs the turn until it yields or waits for callers.
///
/// `session` and `fold` are as they were read under the lease, the session first. Returns the fold once
/// `turn.completed`, or `turn.waiting`, is in the log: the lease ended with it. Dropping the future between two appends loses nothing: the log says where to
/// go on.
///
/// # Errors
/// Every [`Halt`] leaves the turn open for the next worker that leases the session.
pub async fn run(turn: Turn, ports: Ports<'_>, session: Session, fold: LogFold) -> Result<LogFold, Halt> {
    let mut run = Run::new(turn, ports, session, fold);
    loop {
        let ended = match run.checkpoint().await? {
            Some(interrupt) => run.give_up(interrupt, Vec::new()).await?,
            None => run.advance().await?,
        };
        if ended {
            return Ok(run.fold);
        }
    }
}

impl<'a> Run<'a> {
    fn new(turn: Turn, ports: Ports<'a>, session: Session, fold: LogFold) -> Self {
        let tally = Tally::of(turn.id, &session, &fold);
        let head = session.head.max(fold.seq());
        Self {
            turn,
            ports,
            session,
            is_row_new: true,
            fold,
            head,
            tally,
            budgets: Vec::new(),
            fresh: HashSet::new(),
            not_before: Vec::new(),
        }
    }

    /// Does what is next. Returns whether the turn ended or waits.
    async fn advance(&mut self) -> Result<bool, Halt> {
        match next(self.own(), self.turn.attempt, self.turn.output_repairs) {
            Next::Start => self.start().await,
            Next::Ask { failures } => self.step(failures).await,
            Next::Run(calls) => self.run_tools(calls).await,
            Next::Settle(calls) => self.settle_actions(&calls).await,
            Next::Wait => self.wait_for_actions().await,
            Next::AskForOutput => self.ask_for_output().await,
            Next::Finish(finish) if self.continues(finish) => {
                self.read_steers().await?;
                Ok(false)
            }
            Next::Finish(finish) => {
                let stopped = self.stop_calls("ended").await;
                self.finish(finish, stopped).await
            }
        }
    }

    async fn start(&mut self) -> Result<bool, Halt> {
        let is_new = self.session.running.as_ref().is_none_or(|turn| turn.id != self.turn.id);
        if is_new {
            let own = limits::forbids_start(&self.session);
            self.refresh_budgets().await?;
            if let Some(trip) = own.or_else(|| self.shared_limit_used_up()) {
                return self.end_by(trip, Vec::new()).await;
            }
        }
        let resumed = self.session.running.as_ref().filter(|turn| turn.id == self.turn.id);
        let queued = self.session.queued.as_ref().filter(|turn| turn.id == self.turn.id);
        // A caller ended the turn after the worker read the session.
        let Some(window) = resumed.or(queued) else { return Err(Halt::Moved) };
        let body = Body::TurnStarted {
            turn_id: self.turn.id,
            input_from_seq: window.input_from_seq,
            input_to_seq: window.input_to_seq,
            attempt: self.turn.attempt,
            // The fee is charged once, when it first starts here: an imported turn was paid elsewhere.
            fee_micros: if resumed.is_none() && window.usage.cost.fee_micros == 0 {
                self.model().tariff.fee.turn
            } else {
                0
            },
            is_retry: resumed.is_none() && window.attempt > 0,
            agent_seq: self.turn.agent_seq,
        };
        let before = resumed.map(|turn| turn.attempt);
        let lost = before.and_then(|attempt| self.lost_call(attempt));
        let started = self.draft(body, Actor::system());
        self.record(lost.into_iter().chain([started]).collect()).await?;
        Ok(false)
    }

    /// Ends the turn according to its last response, after the events `before`.
    pub(super) async fn finish(&mut self, finish: Finish, before: Vec<Draft>) -> Result<bool, Halt> {
        let error = |code: &str, message: &str| {
            Some(TurnError { code: code.to_owned(), message: message.to_owned() })
        };
        let looped = |Repetition { calls, times, .. }| {
            let what =
                if calls == 1 { "the same call".to_owned() } else { format!("the same {calls} calls") };
            format!("the agent made {what} {times} times in a row; send a message with another way to go on")
        };
        let (reason, error) = match finish {
            Finish::Completed => (YieldReason::Completed, None),
            Finish::Asked => (YieldReason::NeedsInput, None),
            Finish::Unanswered => (YieldReason::RequiresAction, None),
            Finish::Repeated(repetition) => (YieldReason::Error, error("doom_loop", &looped(repetition))),
            Finish::OutputInvalid => (YieldReason::OutputInvalid, error("output_invalid", OUTPUT_INVALID)),
            Finish::Refused => (YieldReason::Error, error("model_refusal", "the model declined to answer")),
            Finish::Truncated => (
                YieldReason::Error,
                error(
                    "max_output_tokens",
                    "the response reached max_tokens; raise it in the agent's model_options",
                ),
            ),
        };
        if finish == Finish::Completed {
            return self.end_unless_steered(before).await;
        }
        self.end(reason, error, None, before).await
    }

    /// Ends the turn for a limit, after the events `before`.
    pub(super) async fn end_by(&mut self, trip: ExceededLimit, mut before: Vec<Draft>) -> Result<bool, Halt> {
        let body = Body::LimitExceeded {
            limit: trip.limit.to_owned(),
            used: trip.used,
            allowed: trip.allowed,
            session_id: trip.session,
        };
        before.push(self.draft(body, Actor::system()));
        self.end(trip.reason, None, Some(trip.limit), before).await
    }

    /// Ends the turn with an error, after the events `before`.
    pub(super) async fn fail(
        &mut self,
        code: &str,
        message: String,
        before: Vec<Draft>,
    ) -> Result<bool, Halt> {
        let error = TurnError { code: code.to_owned(), message };
        self.end(YieldReason::Error, Some(error), None, before).await
    }

    pub(super) async fn end(
        &mut self,
        reason: YieldReason,
        error: Option<TurnError>,
        limit: Option<&str>,
        before: Vec<Draft>,
    ) -> Result<bool, Halt> {
        // Requesting a tool does not count as progress if no sandbox was available for it.
        let is_unready = |code: &str| {
            [
                PreparationFailure::LifecycleHook,
                PreparationFailure::RepoAccess,
                PreparationFailure::Source,
                PreparationFailure::Skill,
            ]
            .iter()
            .any(|one| one.code() == code)
        };
        let without_sandbox =
            error.as_ref().is_some_and(|error| error.code == NO_SANDBOX || is_unready(&error.code));
        let did_before = before.iter().any(|draft| match &draft.body {
            Body::ToolResult { outcome, .. } => *outcome != Outcome::NotRun,
            body => matches!(body, Body::StepCompleted(_)) && !without_sandbox,
        });
        let did = |turn: &TurnFold| turn.has_acted || (turn.step.is_some() && !without_sandbox);
        let did_something = did_before || self.own().is_some_and(did);
        let mut usage = self.usage();
        before.iter().for_each(|draft| usage += Usage::of(draft));
        let completed = TurnCompleted {
            turn_id: self.turn.id,
            yield_reason: reason,
            result_event_id: self.result(&before),
            usage,
            active_seconds: self.active_seconds(),
            failed: error.is_some() && !did_something,
            error,
            output: self.output(&before).filter(|_| reason == YieldReason::Completed),
            output_repairs: self.rejections(&before),
            limit: limit.map(str::to_owned),
        };
        let mut drafts = before;
        // An action that would be withdrawn in the append that opens it is not opened.
        drafts.retain(|draft| !matches!(draft.body, Body::ActionRequired(_)));
        drafts.extend(self.withdrawals());
        drafts.push(self.draft(Body::TurnCompleted(Box::new(completed)), Actor::system()));
        self.record(drafts).await?;
        Ok(true)
    }

    /// Appends events and the warnings that are due with them, and adds them to the fold.
    pub(super) async fn record(&mut self, mut drafts: Vec<Draft>) -> Result<(), Halt> {
        self.warn(&mut drafts);
        drafts.splice(0..0, self.resumption());
        let events = self.ports.journal.record(drafts, self.fold.read_to()).await?;
        events.iter().for_each(|event| self.tally.add(&event.draft));
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Ok(()) };
        let follows = first.seq == self.head + 1;
        self.head = last.seq;
        if follows {
            events.iter().for_each(|event| self.fold.take(event));
            return Ok(());
        }
        // Others appended in between, such as a caller or the sandbox.
        let ends = matches!(last.draft.body, Body::TurnCompleted(_) | Body::TurnWaiting { .. });
        match self.ports.journal.catch_up(&mut self.fold).await {
            // The turn is over; the fold has what it has.
            Err(_) if ends => Ok(()),
            caught_up => caught_up,
        }
    }

    fn warn(&self, drafts: &mut Vec<Draft>) {
        let mut tally = self.tally.clone();
        drafts.iter().for_each(|draft| tally.add(draft));
        // Nothing may follow the end of a turn.
        let is_end = |last: &Draft| matches!(last.body, Body::TurnCompleted(_) | Body::TurnWaiting { .. });
        let ends = drafts.last().is_some_and(is_end);
        let (limits, other_seconds) = (self.session.created.limits, self.session.duration_seconds());
        let due = tally.warnings(limits, self.active_seconds(), other_seconds);
        let place = drafts.len() - usize::from(ends);
        drafts.splice(place..place, due.into_iter().map(|body| self.draft(body, Actor::system())));
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

    /// Returns the usage of the turn so far.
    pub(super) fn usage(&self) -> Usage {
        self.tally.own
    }

    /// Returns the usage of the session so far, this turn included.
    pub(super) fn session_usage(&self) -> Usage {
        self.tally.session
    }

    /// Returns the state of the turn; `None` if the log has nothing of it.
    pub(super) fn own(&self) -> Option<&TurnFold> {
        self.fold.turn(self.turn.id)
    }

    pub(super) fn started_at(&self) -> Option<Timestamp> {
        self.own()?.started_at
    }

    /// Returns the seconds that workers spent on the turn before its last retry.
    pub(super) fn seconds_before(&self) -> u64 {
        self.own().map_or(0, |own| own.seconds_before)
    }

    pub(super) fn active_seconds(&self) -> u64 {
        let since = |start: Timestamp| self.ports.origin.now() - start - self.waited();
        let active = self.started_at().map(|start| since(start).whole_seconds());
        let active = active.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
        active + self.seconds_before()
    }

    /// Returns the id of the agent's last user-level message, including `before`.
    fn result(&self, before: &[Draft]) -> Option<EventId> {
        let is_result =
            |draft: &&Draft| draft.level == Level::User && matches!(draft.body, Body::AgentMessage { .. });
        let said = before.iter().rev().find(is_result).map(|draft| draft.id);
        said.or_else(|| self.own()?.result)
    }
}

/// Returns a span of time in milliseconds.
pub(super) fn millis(span: time::Duration) -> u64 {
    u64::try_from(span.whole_milliseconds()).unwrap_or_default()
}
