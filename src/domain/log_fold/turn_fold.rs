//! State of a queued or running turn, folded from its events.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    base::Timestamp,
    domain::{
        conversation::{Block, StopReason},
        event::{Body, Event, Level, Outcome, StepCompleted},
        ids::*,
        tool::ToolCall,
    },
};

/// State of one turn, for the turn loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnFold {
    /// Time of its first start.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<Timestamp>,
    /// The newest attempt that started; 0 before the first one.
    pub attempt: i32,
    /// Its newest response.
    pub step: Option<LastStep>,
    /// Failed model calls since that response.
    pub model_failures: u32,
    /// Failures to get a sandbox since that response.
    pub runtime_failures: u32,
    /// Time at which the newest failure since that response may be retried.
    #[serde(with = "time::serde::rfc3339::option")]
    pub retry_at: Option<Timestamp>,
    /// Whether a call ran, or may have run.
    pub has_acted: bool,
    /// The agent's newest message of level `user`.
    pub result: Option<EventId>,
    /// Limits of the turn with a warning, and their values.
    pub(super) warned: Vec<(String, u64)>,
    /// Calls without a result.
    open: Vec<OpenCall>,
}

/// A response: why the model stopped, and its calls in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastStep {
    pub stop: StopReason,
    pub calls: Vec<StepCall>,
}

/// A call of a response. Its input is dropped when it has a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepCall {
    pub call: ToolCall,
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OpenCall {
    call: ToolCall,
    /// Whether a sandbox was created or lost since the call was announced.
    met_sandbox: bool,
}

impl LastStep {
    /// Reads the calls of a response.
    pub fn of(step: &StepCompleted) -> Self {
        let calls = step.blocks.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(StepCall { call: call.clone(), outcome: None }),
            Block::Text { .. } | Block::Thinking { .. } => None,
        });
        Self { stop: step.stop, calls: calls.collect() }
    }

    fn answer(&mut self, call_id: &str, outcome: Outcome) {
        let open = |one: &&mut StepCall| one.call.call_id == call_id && one.outcome.is_none();
        for one in self.calls.iter_mut().filter(open) {
            one.outcome = Some(outcome);
            one.call.input = Value::Null;
        }
    }
}

impl TurnFold {
    /// Processes the next event of the turn.
    pub(super) fn take(&mut self, event: &Event) {
        match &event.draft.body {
            Body::TurnStarted { attempt, .. } => {
                self.started_at.get_or_insert(event.ts);
                self.attempt = self.attempt.max(*attempt);
            }
            Body::StepCompleted(step) => {
                self.step = Some(LastStep::of(step));
                (self.model_failures, self.runtime_failures, self.retry_at) = (0, 0, None);
            }
            Body::ErrorModel(failure) => {
                self.model_failures += 1;
                self.retry_at = failure.retry_at;
            }
            Body::ErrorRuntime(failure) => {
                self.runtime_failures += 1;
                self.retry_at = failure.retry_at;
            }
            Body::AgentMessage { .. } if event.draft.level == Level::User => {
                self.result = Some(event.draft.id);
            }
            Body::ToolCall { call_id, tool, input, .. } => {
                let call = ToolCall { call_id: call_id.clone(), tool: tool.clone(), input: input.clone() };
                self.open.push(OpenCall { call, met_sandbox: false });
            }
            Body::ToolResult { call_id, outcome, .. } => {
                self.open.retain(|open| open.call.call_id != *call_id);
                self.has_acted |= *outcome != Outcome::NotRun;
                if let Some(step) = &mut self.step {
                    step.answer(call_id, *outcome);
                }
            }
            Body::LimitWarning { limit, allowed, session_id: None, .. } if is_of_turn(limit) => {
                self.warned.push((limit.clone(), *allowed));
            }
            _ => {}
        }
    }

    /// Notes that a sandbox was created or lost.
    pub(super) fn note_sandbox(&mut self) {
        self.open.iter_mut().for_each(|open| open.met_sandbox = true);
    }

    /// Returns whether a sandbox was created or lost since an open call was announced.
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
