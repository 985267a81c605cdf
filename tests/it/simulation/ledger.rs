//! Invariants of a log, checked with each event that is appended.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use serde_json::Value;
use sojourn::{
    base::Timestamp,
    domain::{
        ActionId, Event, Message, TurnId,
        action::Closed,
        event::{Body, Outcome, StepCompleted, TurnCompleted},
        log_fold,
        mcp::MCP_PREFIX,
        permission::Policy,
        session::Limits,
        tool::Replay,
        turn::YieldReason,
    },
};

use super::{
    calls::{Call, End, check_result, may_run},
    counts::Counts,
};

/// A cancellation is settled within this time while its worker lives, in seconds.
const CANCEL_SECONDS_MAX: i64 = 5;
/// A turn exceeds its deadline by at most this while its worker lives, in seconds. One that waits for a retry without a
/// worker is claimed again first.
const OVERSHOOT_SECONDS_MAX: i64 = 3;

/// A turn starts at most this long after its limits were read.
const PREPARED_WITHIN: Duration = Duration::from_secs(5);

/// Facts of one log, collected as it grows.
#[derive(Default)]
pub struct Ledger {
    /// Ends of turns are also checked against the clock.
    is_quiet: bool,
    /// Rejected outputs of a turn before it ends, if turns need an output.
    output_repairs: Option<u32>,
    /// Number of its models.
    models: usize,
    calls: BTreeMap<String, Call>,
    /// Opened actions; `None` is one that is open.
    actions: BTreeMap<ActionId, Option<End>>,
    /// `seq` of the newest answer or expiry.
    action_seq: i64,
    /// Messages that no turn has read, by their `seq`: the turn that they joined, and whether they steer another.
    unread: BTreeMap<i64, (TurnId, bool)>,
    /// Turns that have read a message, or will.
    with_message: HashSet<TurnId>,
    turns: HashMap<TurnId, Turn>,
    running: Option<TurnId>,
    /// The last turn that ended, if it did with an error.
    last_failed: Option<TurnId>,
    /// The replaced limits and the time of the change: a turn may have been prepared under them.
    replaced: Option<(Timestamp, Limits)>,
    /// Requests to the model, by the number that the response carries as usage.
    asked: HashMap<u64, Vec<Message>>,
    last_asked: Option<(TurnId, Vec<Message>)>,
    pub counts: Counts,
}

#[derive(Debug, Default)]
struct Turn {
    attempt: i32,
    started_at: Option<Timestamp>,
    /// The longest `turn_seconds` that applied while it ran; `None` without a limit.
    seconds: Option<u64>,
    canceled_at: Option<Timestamp>,
    /// Time in which it waited for actions, and whether it waits now.
    waited: Duration,
    is_waiting: bool,
    is_ended: bool,
    /// The output that was accepted since its last message.
    output: Option<Value>,
    outputs_rejected: u32,
    /// The model that was called last, and whether it was not available.
    model: Option<(String, bool)>,
}

impl Ledger {
    /// Creates an empty one; `is_quiet` when no worker fails and the database is available.
    pub fn new(is_quiet: bool, output_repairs: Option<u32>, models: usize) -> Self {
        Self { is_quiet, output_repairs, models, ..Self::default() }
    }

    /// Records the request of model call `number`.
    pub fn asked(&mut self, number: u64, history: Vec<Message>) {
        self.asked.insert(number, history);
    }

    /// Replay class of a call, from the log.
    pub fn replay(&self, call: &str) -> Option<Replay> {
        self.calls.get(call).map(|call| call.replay)
    }

    /// Whether the start of a call is in the log.
    pub fn is_started(&self, call: &str) -> bool {
        self.calls.get(call).is_some_and(|call| call.is_started)
    }

    /// Checks an event against the events before it.
    pub fn note(&mut self, event: &Event, before: &[Event], limits: Limits) {
        self.counts.events += 1;
        if let Some(id) = event.draft.turn_id {
            let is_ended = self.turns.get(&id).is_some_and(|turn| turn.is_ended);
            let is_retry = matches!(event.draft.body, Body::TurnRetried { .. });
            assert_eq!(is_ended, is_retry, "a turn wrote after its end, or is retried before it: {event:?}");
        }
        self.note_message(event);
        self.note_output(event);
        self.note_model(event);
        match &event.draft.body {
            Body::TurnStarted { turn_id, attempt, .. } => self.start(*turn_id, *attempt, event.ts, limits),
            Body::SessionUpdated { limits: Some(newer), .. } => {
                self.replaced = Some((event.ts, limits));
                self.widen(*newer);
            }
            Body::StepCompleted(step) => self.step(event, step, before),
            Body::ToolCall { call_id, tool, replay, policy, .. } => {
                self.counts.calls += 1;
                let turn = event.draft.turn_id.expect("a call belongs to a turn");
                assert_eq!(self.running, Some(turn), "a call outside its turn");
                let is_denied = *policy == Some(Policy::Deny);
                let call = Call::new(turn, *replay, is_denied, tool.starts_with(MCP_PREFIX));
                assert!(self.calls.insert(call_id.clone(), call).is_none(), "a call was announced twice");
            }
            Body::ActionRequired(_)
            | Body::UserCustomToolResult(_)
            | Body::UserToolConfirmation(_)
            | Body::UserAnswer(_)
            | Body::ToolStarted { .. }
            | Body::ActionClosed { .. } => self.note_action(event),
            Body::TurnWaiting { turn_id, action_ids, read_to_seq, .. } => {
                self.wait(*turn_id, action_ids, *read_to_seq)
            }
            Body::TurnResumed { turn_id, waited_ms } => {
                let turn = self.turns.entry(*turn_id).or_default();
                assert!(
                    std::mem::take(&mut turn.is_waiting),
                    "a turn continues that did not wait: {event:?}"
                );
                turn.waited += Duration::from_millis(*waited_ms);
            }
            Body::ToolResult { call_id, outcome, output, .. } => {
                self.counts.unknown += u64::from(*outcome == Outcome::Unknown);
                let call = self.calls.get_mut(call_id).expect("a result belongs to a call");
                assert_eq!(Some(call.turn), event.draft.turn_id, "a result outside its call's turn");
                assert!(
                    !std::mem::replace(&mut call.is_answered, true),
                    "a call was answered twice: {event:?}"
                );
                let end = call.action.map(|action| &self.actions[&action]);
                assert!(!call.is_denied || *outcome == Outcome::NotRun, "a denied call ran: {event:?}");
                check_result(end, call, *outcome, output);
            }
            Body::TurnRetried { turn_id, attempt } => self.retry(*turn_id, *attempt),
            Body::TurnCancelRequested { turn_id, .. } => {
                let turn = self.turns.entry(*turn_id).or_default();
                turn.canceled_at.get_or_insert(event.ts);
            }
            Body::TurnCompleted(completed) => {
                self.counts.exhausted += u64::from(
                    completed.error.as_ref().is_some_and(|error| error.code == "recovery_exhausted"),
                );
                self.check_output(completed);
                self.last_failed = completed.error.is_some().then_some(completed.turn_id);
                self.end(completed.turn_id, completed.yield_reason, event.ts);
            }
            _ => {}
        }
    }

    /// A turn that needs an output completes with one that was accepted since its last message, or ends when too many
    /// were rejected.
    fn check_output(&self, completed: &TurnCompleted) {
        let turn = self.turns.get(&completed.turn_id);
        let (accepted, rejected) =
            turn.map_or((None, 0), |turn| (turn.output.clone(), turn.outputs_rejected));
        let Some(repairs) = self.output_repairs else {
            assert_eq!((&completed.output, rejected), (&None, 0), "an output that nobody needs");
            return;
        };
        match completed.yield_reason {
            // It only summarized the history.
            YieldReason::Completed if !self.with_message.contains(&completed.turn_id) => {
                assert_eq!(completed.output, None);
            }
            YieldReason::Completed => {
                assert!(accepted.is_some(), "a turn completed without its output: {completed:?}");
                assert_eq!(completed.output, accepted);
            }
            YieldReason::OutputInvalid => {
                assert!(accepted.is_none() && rejected > repairs, "{rejected} of {repairs}: {completed:?}");
            }
            _ => assert_eq!(completed.output, None),
        }
    }

    fn note_output(&mut self, event: &Event) {
        let Some(turn) = event.draft.turn_id.and_then(|id| self.turns.get_mut(&id)) else { return };
        match &event.draft.body {
            Body::AgentMessage { output: Some(output), .. } => turn.output = Some(output.clone()),
            Body::OutputRejected(_) => turn.outputs_rejected += 1,
            Body::TurnSteered { .. } => turn.output = None,
            Body::HistoryCompacted(_) | Body::HistoryPruned(_) => {
                self.counts.compactions += 1;
                self.last_asked = None;
            }
            _ => {}
        }
    }

    /// A turn stays with the model that answered it, and calls another one after each failure.
    fn note_model(&mut self, event: &Event) {
        let Some(turn) = event.draft.turn_id.and_then(|id| self.turns.get_mut(&id)) else { return };
        let (model, has_failed) = match &event.draft.body {
            Body::StepCompleted(step) => (format!("{}/{}", step.provider, step.model), false),
            Body::ErrorModel(failure) => {
                let is_of_history = ["context_too_long", "files_refused"].contains(&failure.code.as_str());
                (failure.model.clone().expect("it has one"), !is_of_history)
            }
            _ => return,
        };
        if let Some((last, had_failed)) = turn.model.replace((model.clone(), has_failed)) {
            // A history that has grown may no longer fit another model.
            let may_change = self.models > 1 && (had_failed || !last.ends_with("/m-1"));
            assert!(last == model || may_change, "{last}, then {model} of {}", self.models);
            self.counts.fallbacks += u64::from(last != model);
        }
    }

    /// Each message is read once, and no turn completes beside one that steers it.
    fn note_message(&mut self, event: &Event) {
        match &event.draft.body {
            Body::UserMessage { steers, .. } => {
                let turn = event.draft.turn_id.expect("a message joins a turn");
                self.unread.insert(event.seq, (turn, *steers));
                self.with_message.insert(turn);
            }
            Body::TurnStarted { turn_id, attempt, fee_micros, .. } => {
                assert!(*attempt == 1 || *fee_micros == 0, "the fee of a turn is charged again: {event:?}");
                self.unread.retain(|_, (turn, _)| turn != turn_id);
            }
            Body::TurnSteered { turn_id, from_turn_id, seqs, from_is_empty } => {
                self.counts.steers += seqs.len() as u64;
                self.with_message.insert(*turn_id);
                assert_eq!(self.running, Some(*turn_id), "a turn is steered that does not run");
                for seq in seqs {
                    let read = self.unread.remove(seq);
                    let expected = Some((*from_turn_id, true));
                    assert_eq!(read, expected, "a message is read twice, or steers nothing: {event:?}");
                }
                let is_empty = self.unread.values().all(|(turn, _)| turn != from_turn_id);
                assert_eq!(is_empty, *from_is_empty, "{event:?}");
            }
            Body::TurnCompleted(completed) => {
                self.unread.retain(|_, (turn, _)| *turn != completed.turn_id);
                assert!(
                    completed.yield_reason != YieldReason::Completed
                        || self.unread.values().all(|(_, steers)| !steers),
                    "a turn completed beside a message that steers it: {event:?}"
                );
            }
            _ => {}
        }
    }

    fn note_action(&mut self, event: &Event) {
        match &event.draft.body {
            Body::ActionRequired(action) => {
                let call = self.calls.get_mut(&action.call_id).expect("an action belongs to a call");
                assert!(!call.is_answered, "an action of a call that has its result: {event:?}");
                let before = call.action.replace(action.id);
                if action.continuation.is_some() {
                    // A server asks in the middle of a call, again and again.
                    let is_over = before.is_none_or(|before| self.actions[&before].is_some());
                    assert!(
                        call.is_remote && call.is_started && is_over,
                        "a server asks too early: {event:?}"
                    );
                    (call.is_started, call.is_elicited) = (false, true);
                    self.counts.elicitations += 1;
                } else {
                    assert_eq!(before, None, "a call has two actions: {event:?}");
                }
                assert!(self.actions.insert(action.id, None).is_none(), "an action was opened twice");
            }
            Body::UserCustomToolResult(answer) => {
                self.counts.answers += 1;
                self.end_action(event, answer.action_id, End::Answered(answer.text()));
            }
            Body::UserAnswer(answers) => {
                self.counts.answers += 1;
                self.end_action(event, answers.action_id, End::Answered(answers.text()));
            }
            Body::UserToolConfirmation(confirmation) => {
                self.counts.answers += 1;
                self.end_action(event, confirmation.action_id, End::Decided(confirmation.decision));
            }
            Body::ToolStarted { call_id } => {
                let call = self.calls.get_mut(call_id).expect("a call is announced before it starts");
                assert!(!std::mem::replace(&mut call.is_started, true), "a call started twice: {event:?}");
                let end = call.action.map(|action| &self.actions[&action]);
                let is_answered = matches!(end, Some(Some(End::Answered(_) | End::Closed(Closed::Expired))));
                let is_allowed =
                    may_run(end) || (call.is_remote && end.is_none()) || (call.is_elicited && is_answered);
                assert!(is_allowed, "a call started that nobody confirmed: {event:?}");
            }
            Body::ActionClosed { action_id, reason } => {
                self.counts.expired += u64::from(*reason == Closed::Expired);
                self.end_action(event, *action_id, End::Closed(*reason));
            }
            _ => {}
        }
    }

    fn end_action(&mut self, event: &Event, id: ActionId, end: End) {
        if !matches!(end, End::Closed(Closed::Withdrawn)) {
            self.action_seq = event.seq;
        }
        let open = self.actions.get_mut(&id).expect("an action is opened before it ends");
        assert!(open.replace(end).is_none(), "an action ended twice: {event:?}");
    }

    /// A turn waits only while all of its calls that can run have run, and it has read every answer.
    fn wait(&mut self, id: TurnId, actions: &[ActionId], read_to_seq: i64) {
        self.counts.waits += 1;
        assert_eq!(self.running, Some(id), "a turn waits that does not run");
        assert!(read_to_seq >= self.action_seq, "a turn waits beside an answer that it has not read");
        let open: BTreeSet<_> =
            self.actions.iter().filter(|(_, end)| end.is_none()).map(|(id, _)| *id).collect();
        assert_eq!(
            open,
            actions.iter().copied().collect(),
            "a turn waits for other actions than the open ones"
        );
        let turn = self.turns.entry(id).or_default();
        assert!(!std::mem::replace(&mut turn.is_waiting, true), "a turn waits twice");
    }

    fn start(&mut self, id: TurnId, attempt: i32, ts: Timestamp, limits: Limits) {
        let turn = self.turns.entry(id).or_default();
        assert_eq!(attempt, turn.attempt + 1, "an attempt was skipped or repeated");
        turn.attempt = attempt;
        if turn.started_at.is_none() {
            assert_eq!(self.running.replace(id), None, "two turns run at once");
            turn.started_at = Some(ts);
            turn.seconds = limits.turn_seconds;
            self.counts.turns += u64::from(attempt == 1);
            if let Some((_, older)) = self.replaced.filter(|(at, _)| ts - *at < PREPARED_WITHIN) {
                self.widen(older);
            }
        } else {
            assert_eq!(self.running, Some(id), "a turn that is not running was taken over");
            self.counts.takeovers += 1;
        }
    }

    /// The last turn is queued again, and starts as the attempt that its retry names.
    fn retry(&mut self, id: TurnId, attempt: i32) {
        self.counts.retries += 1;
        assert_eq!(self.running, None, "a turn is retried beside a running one");
        assert_eq!(self.last_failed, Some(id), "a turn is retried that is not the last one, or did not fail");
        let turn = self.turns.entry(id).or_default();
        assert_eq!(attempt, turn.attempt + 1, "a retry is another attempt than the next one");
        *turn = Turn { attempt: turn.attempt, ..Turn::default() };
        self.last_asked = None;
    }

    fn widen(&mut self, limits: Limits) {
        if let Some(turn) = self.running.and_then(|id| self.turns.get_mut(&id)) {
            turn.seconds = turn.seconds.and_then(|was| limits.turn_seconds.map(|seconds| seconds.max(was)));
        }
    }

    /// A request is a function of the log before its response, and only grows at its end.
    fn step(&mut self, event: &Event, step: &StepCompleted, before: &[Event]) {
        self.counts.steps += 1;
        let turn = event.draft.turn_id.expect("a step belongs to a turn");
        let is_summary = step.purpose.is_some();
        let Some(asked) = self.asked.remove(&step.usage.input_tokens) else {
            panic!("a response to an unknown request, or one that was recorded before: {event:?}");
        };
        if is_summary {
            let Some((Message::User { .. }, history)) = asked.split_last() else {
                panic!("a summary is asked for at the end: {asked:?}")
            };
            // After a refusal the model gets a part of it.
            let is_part =
                matches!(&history[0], Message::User { text, .. } if text.contains("is left out here"));
            let whole = log_fold::build(before, false);
            assert!(is_part || history == whole, "a summary is asked for of another history");
            assert!(!is_part || history[1..].iter().all(|message| whole.contains(message)));
            return;
        }
        assert_eq!(asked, log_fold::build(before, false), "the request differs from the log");
        if let Some((last, earlier)) = &self.last_asked
            && *last == turn
        {
            assert!(asked.starts_with(earlier), "a request does not start with the previous one");
        }
        self.last_asked = Some((turn, asked));
    }

    fn end(&mut self, id: TurnId, reason: YieldReason, ts: Timestamp) {
        let open: Vec<_> =
            self.calls.iter().filter(|(_, call)| call.turn == id && !call.is_answered).collect();
        assert!(open.is_empty(), "a turn ended with calls without results: {open:?}");
        let is_open = |call: &&Call| call.action.is_some_and(|action| self.actions[&action].is_none());
        let waits = self.calls.values().filter(|call| call.turn == id).find(is_open);
        assert!(waits.is_none(), "a turn ended with an open action: {waits:?}");
        let turn = self.turns.entry(id).or_default();
        turn.is_ended = true;
        self.running.take_if(|running| *running == id);
        if !self.is_quiet {
            return;
        }
        if let Some(since) = turn.canceled_at {
            let took = ts - since;
            assert!(took.whole_seconds() < CANCEL_SECONDS_MAX, "a cancel took {took}");
            self.counts.slowest_cancel = self.counts.slowest_cancel.max(took.try_into().unwrap_or_default());
        }
        if let (Some(started), Some(seconds)) = (turn.started_at, turn.seconds) {
            let over = ts - (started + Duration::from_secs(seconds) + turn.waited);
            // The time of its last wait is not in `waited` yet.
            if !turn.is_waiting {
                assert!(
                    over.whole_seconds() < OVERSHOOT_SECONDS_MAX,
                    "{reason:?} came {over} after the deadline"
                );
                let over = over.try_into().unwrap_or_default();
                self.counts.worst_overshoot = self.counts.worst_overshoot.max(over);
            }
        }
    }

    /// Invariants once no work is pending.
    pub fn check_at_rest(&self) {
        assert_eq!(self.running, None, "a turn still runs");
        let open: Vec<_> = self.calls.iter().filter(|(_, call)| !call.is_answered).collect();
        assert!(open.is_empty(), "calls without a result: {open:?}");
        let lasting = self.turns.iter().find(|(_, turn)| !turn.is_ended);
        assert!(lasting.is_none(), "a turn without an end: {lasting:?}");
    }
}
