//! Scripted models: play a script without a provider; everything else is real.
//!
//! Called through the port `Model`. For first steps (`demo`), for tests of the whole service
//! (`inline`, docs/scripted.md) and for benchmarks (`noop`). The next step is computed from the
//! history alone, so any worker can continue; only pending faults are counted in the process.

mod demo;
mod faults;
mod inline;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use super::{Delta, Fault, Model, estimate};
use crate::{
    base::{limit, text},
    domain::{Answer, Block, Message, StopReason, Usage, conversation::ModelRequest, tool::ToolCall},
};

pub use demo::SAMPLE;
pub(super) use faults::Faults;

/// Provider name in model names and histories.
pub(super) const PROVIDER: &str = "scripted";
/// Names of the available scripts.
pub(super) const NAMES: [&str; 3] = ["noop", "demo", "inline"];
/// Response of a script that has no more steps.
const DONE: &str = "done";
/// Bytes of one delta, so that a reader sees the response stream.
const DELTA_BYTES: usize = 24;

/// A model that plays one of the scripts.
#[derive(Debug)]
pub(super) struct Scripted {
    script: Script,
    faults: Arc<Faults>,
}

#[derive(Clone, Copy, Debug)]
enum Script {
    Noop,
    Demo,
    Inline,
}

/// One response of a script.
#[derive(Clone, Debug, Default)]
struct Step {
    thinking: String,
    text: String,
    tools: Vec<(String, Value)>,
    delay: Duration,
    usage: Option<Usage>,
    stop: Option<StopReason>,
    fault: Option<Planned>,
    /// Whether the ids of calls differ in each attempt, as those of a real provider do.
    new_ids: bool,
}

/// A fault that occurs `times` times before the step itself is played.
#[derive(Clone, Debug)]
struct Planned {
    kind: Kind,
    times: u32,
    retry_after: Option<Duration>,
}

/// Faults of a provider, as the harness sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    RateLimited,
    Overloaded,
    Unavailable,
    Stall,
    Cut,
    ContextTooLong,
    Unauthorized,
    PaymentRequired,
    Refused,
}

impl Scripted {
    /// Returns the script of that name, if it exists.
    pub(super) fn named(name: &str, faults: Arc<Faults>) -> Option<Self> {
        let script = match name {
            "noop" => Script::Noop,
            "demo" => Script::Demo,
            "inline" => Script::Inline,
            _ => return None,
        };
        Some(Self { script, faults })
    }
}

#[async_trait]
impl Model for Scripted {
    fn provider(&self) -> &str {
        PROVIDER
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault> {
        let step = match self.script {
            Script::Noop => Step { text: DONE.to_owned(), ..Step::default() },
            Script::Demo => demo::step(&request.history),
            Script::Inline => inline::step(&request.history)?,
        };
        if let Some(planned) =
            step.fault.as_ref().filter(|planned| self.faults.is_due(request, planned.times))
        {
            return Err(planned.play(&step, deltas).await);
        }
        pause(step.delay).await;
        let mut place = request.history.len().to_string();
        if step.new_ids {
            place = format!("{place}_{}_{}", std::process::id(), self.faults.count());
        }
        let blocks = step.blocks(&place);
        for (index, block) in blocks.iter().enumerate() {
            grow(index, block, deltas);
        }
        Ok(step.answer(request, blocks))
    }
}

impl Step {
    fn blocks(&self, place: &str) -> Vec<Block> {
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

    fn answer(self, request: &ModelRequest, blocks: Vec<Block>) -> Answer {
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
    async fn play(&self, step: &Step, deltas: &mut (dyn FnMut(Delta) + Send)) -> Fault {
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
            Kind::Refused => Fault::Refused { reason },
        }
    }
}

/// Returns the responses since the newest user message, with their tool results.
fn since_last_user(history: &[Message]) -> &[Message] {
    let is_user = |message: &Message| matches!(message, Message::User { .. });
    let start = history.iter().rposition(is_user).map_or(0, |at| at + 1);
    &history[start..]
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn grow(index: usize, block: &Block, deltas: &mut (dyn FnMut(Delta) + Send)) {
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

#[cfg(test)]
mod tests;
