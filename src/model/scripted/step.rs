//! One response of a script, or the fault in its place.

use std::time::Duration;

use serde_json::Value;

use crate::{
    base::{limit, text},
    domain::{
        Answer, Block, Message, StopReason, Usage,
        conversation::{ModelRequest, NO_OUTPUT},
        tool::ToolCall,
    },
    model::{Delta, Fault, estimate},
};

/// Response of a script that has no more steps.
pub(super) const DONE: &str = "done";
/// Bytes of one delta, so that a reader sees the response stream.
const DELTA_BYTES: usize = 24;

/// One response of a script.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) thinking: String,
    pub(super) text: String,
    pub(super) tools: Vec<(String, Value)>,
    pub(super) delay: Duration,
    pub(super) usage: Option<Usage>,
    pub(super) stop: Option<StopReason>,
    pub(super) fault: Option<Planned>,
    /// Whether the ids of calls differ in each attempt, as those of a real provider do.
    pub(super) new_ids: bool,
}

/// A fault that occurs `times` times before the step itself is played.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    pub(super) times: u32,
    pub(super) retry_after: Option<Duration>,
}

/// Faults of a provider, as the harness sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    RateLimited,
    Overloaded,
    Unavailable,
    Stall,
    Cut,
    ContextTooLong,
    Unauthorized,
    PaymentRequired,
    FileRefused,
    Refused,
}

impl Step {
    pub(super) fn blocks(&self, place: &str) -> Vec<Block> {
        let mut blocks = Vec::new();
        if !self.thinking.is_empty() {
            blocks.push(Block::Thinking { text: self.thinking.clone() });
        }
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: self.text.clone() });
        }
        // The position in the history makes an id unique in the session, and equal when the call is
        // repeated.
        let calls = self.tools.iter().enumerate().map(|(at, (tool, input))| {
            let call_id = format!("call_{place}_{at}");
            Block::ToolCall(ToolCall { call_id, tool: tool.clone(), input: input.clone() })
        });
        blocks.extend(calls);
        blocks
    }

    pub(super) fn answer(self, request: &ModelRequest, blocks: Vec<Block>) -> Answer {
        let usage = self.usage.unwrap_or_else(|| Usage {
            input_tokens: estimate::input_tokens(request),
            output_tokens: estimate::tokens(estimate::said_bytes(&blocks)),
            ..Usage::default()
        });
        let ends = if self.tools.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
        Answer { blocks, raw: Vec::new(), stop: self.stop.unwrap_or(ends), usage }
    }
}

impl Planned {
    pub(super) async fn play(&self, step: &Step, deltas: &mut (dyn FnMut(Delta) + Send)) -> Fault {
        let reason = format!("scripted {:?}", self.kind);
        let stalls = self.kind == Kind::Stall && step.delay.is_zero();
        pause(if stalls { limit::MODEL_FIRST_BYTE_TIMEOUT } else { step.delay }).await;
        if self.kind == Kind::Cut {
            let half = text::truncate(&step.text, step.text.len() / 2).to_owned();
            grow(0, &Block::Text { text: half }, deltas);
        }
        let retry_after = self.retry_after;
        match self.kind {
            Kind::RateLimited | Kind::Overloaded | Kind::Unavailable | Kind::Stall | Kind::Cut => {
                Fault::Unavailable { reason, retry_after }
            }
            Kind::ContextTooLong => Fault::ContextTooLong { reason },
            Kind::Unauthorized => Fault::Unauthorized { reason },
            Kind::PaymentRequired => Fault::PaymentRequired { reason },
            Kind::FileRefused => Fault::FilesRefused { reason },
            Kind::Refused => Fault::Refused { reason },
        }
    }
}

/// Returns the responses since the newest message of a user, with their tool results. The service's own words in
/// between do not start another script.
pub(super) fn since_last_user(history: &[Message]) -> &[Message] {
    let is_user = |message: &Message| matches!(message, Message::User { text, .. } if text != NO_OUTPUT);
    let start = history.iter().rposition(is_user).map_or(0, |at| at + 1);
    &history[start..]
}

pub(super) async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

pub(super) fn grow(index: usize, block: &Block, deltas: &mut (dyn FnMut(Delta) + Send)) {
    let (mut rest, is_text) = match block {
        Block::Text { text } => (text.as_str(), true),
        Block::Thinking { text } => (text.as_str(), false),
        Block::ToolCall(_) => return,
    };
    while !rest.is_empty() {
        let piece = text::truncate(rest, DELTA_BYTES);
        rest = &rest[piece.len()..];
        let text = piece.to_owned();
        deltas(if is_text { Delta::Text { index, text } } else { Delta::Thinking { index, text } });
    }
}
