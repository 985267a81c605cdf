//! State of a queued or running turn, folded from its events.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    LastStep,
    turn_actions::{ActionEnd, TurnActions, millis},
};
use crate::{
    base::Timestamp,
    domain::{
        action::ActionKind,
        custom_tool::CustomTool,
        elicitation::Elicited,
        event::{Body, Event, Level, Outcome, StepCompleted},
        ids::*,
        permission::{Policy, Rule},
        repetition::{RecentCalls, Repetition},
        tool::{ASK, Replay, SUBMIT_OUTPUT, ToolCall},
        turn::YieldReason,
    },
};

/// Code of the error of a model call whose history was refused as too long, if a summary may help.
pub const CONTEXT_TOO_LONG: &str = "context_too_long";

/// Code of the error of a model call whose files were refused; these are left out of the next one.
pub const FILES_REFUSED: &str = "files_refused";

/// State of one turn, for the turn loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnFold {
    /// Time of its first start since its last retry.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<Timestamp>,
    /// Time that workers spent on it before its last retry, in seconds.
    pub seconds_before: u64,
    /// The newest attempt that started; 0 before the first one.
    pub attempt: i32,
    /// Its newest response.
    pub step: Option<LastStep>,
    /// The model of its newest model call that succeeded, as `provider/model`.
    pub model: Option<String>,
    /// Failed model calls since that response.
    pub model_failures: u32,
    /// Failures to get a sandbox since that response.
    pub runtime_failures: u32,
    /// Time at which the newest failure since that response may be retried.
    #[serde(with = "time::serde::rfc3339::option")]
    pub retry_at: Option<Timestamp>,
    /// Whether it read messages since that response, of callers or of the service.
    pub has_new_input: bool,
    /// JSON Schema of its output, if its messages have one; the newest one counts.
    pub output_schema: Option<Map<String, Value>>,
    /// The output that it submitted since its last input.
    pub output: Option<Value>,
    /// Rejected outputs.
    pub output_repairs: u32,
    /// Whether it has a message to read; a turn without one only summarizes the history.
    pub has_input: bool,
    /// Whether a summary was made, or failed.
    pub has_summarized: bool,
    /// Summaries of the history.
    pub compactions: u32,
    /// Model calls for a summary since the last one.
    pub summaries_asked: u32,
    /// Requests since the newest response that the provider refused as too long.
    pub context_refusals: u32,
    /// Its calls since its last input, or since the last loop of them.
    pub recent: RecentCalls,
    /// Loops of calls since its last input that no person has confirmed.
    pub loops: u32,
    /// The loop that ends it.
    pub final_loop: Option<Repetition>,
    /// Whether a call ran, or may have run.
    pub has_acted: bool,
    /// The agent's newest message of level `user`.
    pub result: Option<EventId>,
    /// Limits of the turn with a warning, and their values.
    pub(super) warned: Vec<(String, u64)>,
    /// Calls without a result.
    open: Vec<OpenCall>,
    /// Actions of those calls.
    actions: TurnActions,
    /// Its wait for actions or sessions, until it is resumed.
    waiting: Option<Waiting>,
    /// Time that it has waited for actions, in milliseconds.
    pub waited_ms: u64,
    /// Registered tools as they were when it started.
    pub(super) tools: Vec<CustomTool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    #[serde(with = "time::serde::rfc3339")]
    since: Timestamp,
    /// Time of the event that ended it.
    #[serde(with = "time::serde::rfc3339::option")]
    woken_at: Option<Timestamp>,
    /// Whether callers have something to do.
    for_callers: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OpenCall {
    call: ToolCall,
    /// The event of the call.
    event: EventId,
    replay: Replay,
    /// Whether a sandbox was created or lost since the call was announced, or started after a confirmation.
    met_sandbox: bool,
    /// Whether its start is in the log, as that of a confirmed call, or of one that runs at a server.
    is_started: bool,
    /// The rule that forbids it.
    denied_by: Option<Box<Rule>>,
}

impl TurnFold {
    /// Processes the next event of the turn.
    pub(super) fn take(&mut self, event: &Event) {
        match &event.draft.body {
            Body::TurnStarted { attempt, .. } => {
                self.started_at.get_or_insert(event.ts);
                self.attempt = self.attempt.max(*attempt);
            }
            Body::StepCompleted(step) => self.take_step(step),
            Body::HistoryCompacted(_) | Body::HistoryCompactionFailed(_) | Body::HistoryPruned(_) => {
                self.take_shortening(&event.draft.body);
            }
            Body::ErrorModel(failure) => {
                match failure.code.as_str() {
                    CONTEXT_TOO_LONG => self.context_refusals += 1,
                    FILES_REFUSED => {}
                    _ => self.model_failures += 1,
                }
                self.retry_at = failure.retry_at;
            }
            Body::ErrorRuntime(failure) => {
                self.runtime_failures += 1;
                self.retry_at = failure.retry_at;
            }
            Body::UserMessage { output_schema, .. } => {
                self.has_input = true;
                self.output_schema = output_schema.clone().or(self.output_schema.take());
            }
            Body::AgentMessage { .. } | Body::OutputRejected(_) => self.take_output(event),
            Body::ToolCall { call_id, tool, input, replay, policy, rule, repeats, .. } => {
                let call = ToolCall { call_id: call_id.clone(), tool: tool.clone(), input: input.clone() };
                self.note_call(&call, *repeats);
                let denied_by = rule.clone().filter(|_| *policy == Some(Policy::Deny));
                let (met_sandbox, is_started) = (false, false);
                let event = event.draft.id;
                self.open.push(OpenCall { call, event, replay: *replay, met_sandbox, is_started, denied_by });
            }
            Body::ToolStarted { call_id } => {
                for open in self.open.iter_mut().filter(|open| open.call.call_id == *call_id) {
                    (open.met_sandbox, open.is_started) = (false, true);
                }
            }
            Body::ActionRequired(_)
            | Body::UserCustomToolResult(_)
            | Body::UserToolConfirmation(_)
            | Body::UserAnswer(_)
            | Body::ActionClosed { .. } => self.take_action(event),
            Body::TurnSteered { .. } => self.read_messages(),
            Body::TurnWaiting { .. } | Body::TurnResumed { .. } => self.take_wait(event),
            Body::ToolResult { call_id, tool, outcome, .. } => {
                self.open.retain(|open| open.call.call_id != *call_id);
                let ends_turn = self.ends_turn(call_id, tool, *outcome);
                self.actions.forget(call_id);
                self.has_acted |= *outcome != Outcome::NotRun;
                if let Some(step) = &mut self.step {
                    step.answer(call_id, *outcome, ends_turn);
                }
            }
            Body::LimitWarning { limit, allowed, session_id: None, .. } if is_of_turn(limit) => {
                self.warned.push((limit.clone(), *allowed));
            }
            _ => {}
        }
    }

    /// Processes the begin or the end of a wait.
    fn take_wait(&mut self, event: &Event) {
        match &event.draft.body {
            Body::TurnWaiting { action_ids, .. } => {
                self.waiting =
                    Some(Waiting { since: event.ts, woken_at: None, for_callers: !action_ids.is_empty() });
                // A turn waits when no call runs: the next request of each open call has met no sandbox.
                self.open.iter_mut().for_each(|open| open.met_sandbox = false);
            }
            Body::TurnResumed { waited_ms, .. } => {
                self.waiting = None;
                self.waited_ms += waited_ms;
            }
            _ => {}
        }
    }

    /// Processes an event of an action.
    fn take_action(&mut self, event: &Event) {
        if let Body::ActionRequired(action) = &event.draft.body {
            self.actions.open(action, event.ts);
            if action.continuation.is_some() {
                // Its next request is another one, which no sandbox has met.
                self.has_acted = true;
                for open in self.open.iter_mut().filter(|open| open.call.call_id == action.call_id) {
                    (open.met_sandbox, open.is_started) = (false, false);
                }
            }
            return;
        }
        if self.actions.take_end(event) {
            self.loops = 0;
        }
        let continues = self.continues();
        if let Some(waiting) = self.waiting.as_mut().filter(|_| continues) {
            waiting.woken_at = Some(event.ts);
        }
    }

    /// Processes a message of the agent, which may be its output, or a rejected output.
    fn take_output(&mut self, event: &Event) {
        match &event.draft.body {
            Body::AgentMessage { output, .. } if event.draft.level == Level::User => {
                // A question beside the output does not take its place.
                if output.is_some() || self.output.is_none() {
                    self.result = Some(event.draft.id);
                }
                self.output = output.clone().or(self.output.take());
            }
            Body::OutputRejected(rejected) => {
                self.output_repairs += 1;
                self.has_new_input |= rejected.call_id.is_none();
            }
            _ => {}
        }
    }

    /// Returns the state in which a retry continues a turn that failed after `active_seconds`: the history has its
    /// steps, and its failures are over.
    pub(super) fn before_retry(self, active_seconds: u64) -> Self {
        Self {
            seconds_before: active_seconds,
            attempt: self.attempt,
            output_schema: self.output_schema,
            has_input: self.has_input,
            has_acted: self.has_acted || self.step.is_some(),
            result: self.result,
            warned: self.warned,
            ..Self::default()
        }
    }

    fn take_shortening(&mut self, body: &Body) {
        match body {
            Body::HistoryCompacted(_) => {
                (self.compactions, self.summaries_asked, self.has_summarized) =
                    (self.compactions + 1, 0, true);
            }
            Body::HistoryCompactionFailed(_) => (self.summaries_asked, self.has_summarized) = (0, true),
            // The shorter history is tried before anything else.
            Body::HistoryPruned(_) => self.context_refusals = 0,
            _ => {}
        }
    }

    fn take_step(&mut self, step: &StepCompleted) {
        (self.model_failures, self.runtime_failures, self.retry_at) = (0, 0, None);
        self.context_refusals = 0;
        self.model = Some(format!("{}/{}", step.provider, step.model));
        if step.purpose.is_none() {
            self.step = Some(LastStep::of(step));
            self.has_new_input = false;
        } else {
            self.summaries_asked += 1;
        }
    }

    fn read_messages(&mut self) {
        (self.has_input, self.has_new_input) = (true, true);
        // They may ask for another output.
        if self.output.take().is_some() {
            self.result = None;
        }
        self.recent.clear();
        self.loops = 0;
    }

    fn note_call(&mut self, call: &ToolCall, repeats: Option<Repetition>) {
        self.recent.push(call);
        if let Some(repetition) = repeats {
            self.recent.clear();
            self.loops += 1;
            self.final_loop = self.final_loop.or(Some(repetition).filter(|repetition| repetition.ends_turn));
        }
    }

    /// Returns whether a person had to confirm a call because it repeats others.
    pub fn is_loop(&self, call_id: &str) -> bool {
        self.actions.is_loop(call_id)
    }

    /// Returns how the result of a call ends the turn, if it does.
    fn ends_turn(&self, call_id: &str, tool: &str, outcome: Outcome) -> Option<YieldReason> {
        match self.actions.of(call_id) {
            Some(action) => match action.end {
                Some(ActionEnd::Expired { ends_turn: true, .. }) => Some(YieldReason::RequiresAction),
                Some(_) | None => None,
            },
            None if outcome != Outcome::Ran => None,
            None if tool == ASK => Some(YieldReason::NeedsInput),
            None => (tool == SUBMIT_OUTPUT).then_some(YieldReason::Completed),
        }
    }

    /// Returns whether a wait ends: no action is open, or a call can run or has been rejected. The counterpart for the
    /// job is in `journal`.
    fn continues(&self) -> bool {
        let is_runnable = |open: &OpenCall| match self.actions.of(&open.call.call_id) {
            None => true,
            Some(action) => matches!(
                action.end,
                Some(ActionEnd::Confirmed | ActionEnd::Rejected { .. } | ActionEnd::Elicited(_))
            ),
        };
        self.open_actions().next().is_none() || self.open.iter().any(is_runnable)
    }

    /// Returns the end of the action of a call, if it has one whose end is its result: a confirmed call still runs, and one
    /// whose server asked goes on.
    pub fn ended_action(&self, call_id: &str) -> Option<&ActionEnd> {
        let end = self.actions.of(call_id)?.end.as_ref();
        end.filter(|end| !matches!(end, ActionEnd::Confirmed | ActionEnd::Elicited(_)))
    }

    /// Returns the newest elicitation of a call, if it has ended.
    pub fn elicited(&self, call_id: &str) -> Option<Elicited> {
        self.actions.elicited(call_id)
    }

    /// Returns how often the server of a call has asked.
    pub fn elicitations(&self, call_id: &str) -> u32 {
        self.actions.elicitations(call_id)
    }

    /// Returns what the confirmation of a call is bound to, if it was confirmed and has not started.
    pub fn confirmed(&self, call_id: &str) -> Option<&str> {
        let action = self.actions.of(call_id).filter(|one| one.end == Some(ActionEnd::Confirmed))?;
        if self.is_started(call_id) { None } else { action.args_hash.as_deref() }
    }

    /// Returns whether the log has the start of a call without a result.
    pub fn is_started(&self, call_id: &str) -> bool {
        self.open.iter().any(|open| open.call.call_id == call_id && open.is_started)
    }

    /// Returns whether a call without a result has certainly not begun: its step ends the turn, a caller has it, a rule
    /// or a person forbids it, nobody confirmed it in time, or it was confirmed and has not started.
    pub fn has_not_begun(&self, call_id: &str) -> bool {
        self.final_loop.is_some()
            || (self.needs_caller(call_id) && self.elicitations(call_id) == 0)
            || self.confirmed(call_id).is_some()
            || self.denied_by(call_id).is_some()
            || self.is_refused(call_id)
    }

    /// Returns whether a person rejected a call without a result, or nobody confirmed it in time.
    fn is_refused(&self, call_id: &str) -> bool {
        matches!(
            self.ended_action(call_id),
            Some(ActionEnd::Rejected { .. } | ActionEnd::Expired { kind: ActionKind::Confirmation, .. })
        )
    }

    /// Returns the event of a call without a result.
    pub fn call_event(&self, call_id: &str) -> Option<EventId> {
        Some(self.open.iter().find(|open| open.call.call_id == call_id)?.event)
    }

    /// Returns the rule that forbids a call without a result, if one does.
    pub fn denied_by(&self, call_id: &str) -> Option<&Rule> {
        self.open.iter().find(|open| open.call.call_id == call_id)?.denied_by.as_deref()
    }

    /// Returns the open actions: id, call and expiry.
    pub fn open_actions(&self) -> impl Iterator<Item = (ActionId, &str, Timestamp)> {
        self.actions.still_open()
    }

    /// Returns whether a call has an action that is open.
    pub fn needs_caller(&self, call_id: &str) -> bool {
        self.open_actions().any(|(_, of, _)| of == call_id)
    }

    /// Returns whether a call without a result changes nothing.
    pub fn is_read_only(&self, call_id: &str) -> bool {
        self.open.iter().any(|open| open.call.call_id == call_id && open.replay == Replay::ReadOnly)
    }

    /// Returns whether it waits: its last wait has not been followed by a resumption.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns the milliseconds of the current wait for callers, until what ended it, or until `now`.
    pub fn current_wait_ms(&self, now: Timestamp) -> u64 {
        let waiting = self.waiting.as_ref().filter(|waiting| waiting.for_callers);
        waiting.map_or(0, |waiting| millis(waiting.woken_at.unwrap_or(now) - waiting.since))
    }

    /// Notes that a sandbox was created or lost.
    pub(super) fn note_sandbox(&mut self) {
        self.open.iter_mut().for_each(|open| open.met_sandbox = true);
    }

    /// Returns whether a sandbox was created or lost since an open call was announced, and since the turn last waited.
    pub(super) fn met_sandbox(&self, call_id: &str) -> bool {
        self.open.iter().any(|open| open.call.call_id == call_id && open.met_sandbox)
    }

    /// Returns the calls without a result, in order.
    pub fn open_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.open.iter().map(|open| &open.call)
    }
}

/// Returns whether a limit starts again with each turn.
pub(super) fn is_of_turn(limit: &str) -> bool {
    matches!(limit, "turn_seconds" | "steps")
}
