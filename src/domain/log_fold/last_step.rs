//! The newest response of a turn, and the results of its calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::{
    conversation::{Block, StopReason},
    event::{Outcome, StepCompleted},
    tool::ToolCall,
    turn::YieldReason,
};

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
    /// How its result ends the turn, if it does: nobody ran it in time, its question is for the next message, or it
    /// submitted the output.
    pub ends_turn: Option<YieldReason>,
}

impl LastStep {
    /// Reads the calls of a response.
    pub fn of(step: &StepCompleted) -> Self {
        let calls = step.blocks.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(StepCall { call: call.clone(), outcome: None, ends_turn: None }),
            Block::Text { .. } | Block::Thinking { .. } => None,
        });
        Self { stop: step.stop, calls: calls.collect() }
    }

    pub(super) fn answer(&mut self, call_id: &str, outcome: Outcome, ends_turn: Option<YieldReason>) {
        let open = |one: &&mut StepCall| one.call.call_id == call_id && one.outcome.is_none();
        for one in self.calls.iter_mut().filter(open) {
            one.outcome = Some(outcome);
            one.ends_turn = ends_turn;
            one.call.input = Value::Null;
        }
    }
}
