//! Parser of one streamed response.
//!
//! Called by `exchange::read`, frame by frame. Blocks keep every field that the provider sent, in
//! its order; only `message_stop` completes the response.
//! (platform.claude.com/docs/en/build-with-claude/streaming)

use serde::Deserialize;
use serde_json::{Map, Value};

use super::fault::{self, ErrorBody};
use crate::{
    base::limit,
    domain::{Answer, Block, StopReason, Usage, tool::ToolCall},
    model::{
        Delta, Fault,
        exchange::{Reader, unavailable},
        sse::Frame,
        tool_input,
    },
};

/// The part of a response that has arrived.
#[derive(Debug, Default)]
pub(super) struct Stream {
    blocks: Vec<Growing>,
    usage: UsageBody,
    stop: Option<String>,
    stopped: bool,
}

#[derive(Debug)]
struct Growing {
    block: Map<String, Value>,
    /// Arguments of a tool call, received so far.
    input: String,
    closed: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: MessageHead,
    },
    ContentBlockStart {
        index: usize,
        content_block: Map<String, Value>,
    },
    ContentBlockDelta {
        index: usize,
        delta: BlockDelta,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: MessageChange,
        #[serde(default)]
        usage: UsageBody,
    },
    MessageStop,
    Error {
        error: ErrorBody,
    },
    // Pings, and event types that the provider may add within a version.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct MessageHead {
    #[serde(default)]
    usage: UsageBody,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum BlockDelta {
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    SignatureDelta {
        signature: String,
    },
    InputJsonDelta {
        partial_json: String,
    },
    CitationsDelta {
        citation: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct MessageChange {
    stop_reason: Option<String>,
}

// Each count is cumulative; the last one is valid.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct UsageBody {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

impl Reader for Stream {
    fn frame(&mut self, frame: &Frame, deltas: &mut (dyn FnMut(Delta) + Send)) -> Result<bool, Fault> {
        let event = serde_json::from_str(&frame.data)
            .map_err(|error| unavailable(&format!("an event of the stream is malformed: {error}")))?;
        match event {
            Event::MessageStart { message } => {
                self.usage.update(message.usage);
                deltas(Delta::Used(self.usage.into()));
            }
            Event::ContentBlockStart { index, content_block } => self.open(index, content_block)?,
            Event::ContentBlockDelta { index, delta } => self.grow(index, delta, deltas)?,
            Event::ContentBlockStop { index } => self.block(index)?.close(),
            Event::MessageDelta { delta, usage } => {
                self.usage.update(usage);
                deltas(Delta::Used(self.usage.into()));
                self.stop = delta.stop_reason.or(self.stop.take());
            }
            Event::MessageStop => self.stopped = true,
            Event::Error { error } => return Err(fault::from_event(&error)),
            Event::Other => {}
        }
        Ok(self.stopped)
    }

    fn finish(self) -> Result<Answer, Fault> {
        let whole = self.stopped && self.blocks.iter().all(|block| block.closed);
        let Some(stop) = self.stop.filter(|_| whole) else {
            return Err(unavailable("the stream ended before the response was complete"));
        };
        let raw: Vec<Value> = self.blocks.into_iter().map(|block| Value::Object(block.block)).collect();
        let blocks: Vec<Block> = raw.iter().filter_map(neutral).collect();
        if !tool_input::ids_are_distinct(&blocks) {
            return Err(unavailable("the response has two tool calls with the same id"));
        }
        let stop = stop_reason(&stop, &blocks);
        Ok(Answer { blocks, raw, stop, usage: self.usage.into() })
    }
}

impl Stream {
    fn open(&mut self, index: usize, block: Map<String, Value>) -> Result<(), Fault> {
        if index != self.blocks.len() {
            return Err(out_of_order(index));
        }
        self.blocks.push(Growing { block, input: String::new(), closed: false });
        Ok(())
    }

    fn block(&mut self, index: usize) -> Result<&mut Growing, Fault> {
        self.blocks.get_mut(index).filter(|block| !block.closed).ok_or_else(|| out_of_order(index))
    }

    fn grow(
        &mut self,
        index: usize,
        delta: BlockDelta,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<(), Fault> {
        let block = self.block(index)?;
        match delta {
            BlockDelta::TextDelta { text } => {
                block.append("text", &text);
                deltas(Delta::Text { index, text });
            }
            BlockDelta::ThinkingDelta { thinking: text } => {
                block.append("thinking", &text);
                deltas(Delta::Thinking { index, text });
            }
            BlockDelta::SignatureDelta { signature } => block.append("signature", &signature),
            BlockDelta::InputJsonDelta { partial_json } => {
                block.input.push_str(&partial_json);
                deltas(Delta::Input { bytes: partial_json.len() });
            }
            BlockDelta::CitationsDelta { citation } => block.cite(citation),
            BlockDelta::Other => {}
        }
        Ok(())
    }
}

impl Growing {
    fn append(&mut self, field: &str, more: &str) {
        match self.block.get_mut(field) {
            Some(Value::String(text)) => text.push_str(more),
            // The start event omitted this field or sent null.
            Some(_) | None => {
                self.block.insert(field.to_owned(), Value::from(more));
            }
        }
    }

    fn cite(&mut self, citation: Value) {
        match self.block.get_mut("citations") {
            Some(Value::Array(citations)) => citations.push(citation),
            Some(_) | None => {
                self.block.insert("citations".to_owned(), Value::Array(vec![citation]));
            }
        }
    }

    fn close(&mut self) {
        self.closed = true;
        if !self.input.is_empty() {
            self.block.insert("input".to_owned(), tool_input::parse(&self.input));
        }
        if self.block.get("type").and_then(Value::as_str) == Some("tool_use") {
            // A tool call without arguments keeps the `{}` of its start event. A valid id is kept
            // (gateways generate their own ids).
            let input = self.block.get("input").map_or_else(|| tool_input::parse(""), tool_input::object);
            let id = self.block.get("id").and_then(Value::as_str).unwrap_or_default();
            let id = if id.is_empty() { String::new() } else { tool_input::call_id(id) };
            self.block.insert("id".to_owned(), Value::from(id));
            self.block.insert("input".to_owned(), input);
        }
    }
}

impl UsageBody {
    fn update(&mut self, newer: Self) {
        self.input_tokens = newer.input_tokens.or(self.input_tokens);
        self.output_tokens = newer.output_tokens.or(self.output_tokens);
        self.cache_creation_input_tokens =
            newer.cache_creation_input_tokens.or(self.cache_creation_input_tokens);
        self.cache_read_input_tokens = newer.cache_read_input_tokens.or(self.cache_read_input_tokens);
    }
}

impl From<UsageBody> for Usage {
    fn from(body: UsageBody) -> Self {
        let count = |tokens: Option<u64>| tokens.unwrap_or(0).min(limit::MODEL_TOKENS_MAX);
        Self {
            input_tokens: count(body.input_tokens),
            output_tokens: count(body.output_tokens),
            cache_write_tokens: count(body.cache_creation_input_tokens),
            cache_read_tokens: count(body.cache_read_input_tokens),
            ..Usage::default()
        }
    }
}

fn out_of_order(index: usize) -> Fault {
    unavailable(&format!("the stream is out of order at block {index}"))
}

/// Converts a block to neutral form; `None` for the provider's own tools.
fn neutral(block: &Value) -> Option<Block> {
    let text = |field| block[field].as_str().unwrap_or_default().to_owned();
    match block["type"].as_str()? {
        "text" => Some(Block::Text { text: text("text") }),
        "thinking" => Some(Block::Thinking { text: text("thinking") }),
        "redacted_thinking" => Some(Block::Thinking { text: String::new() }),
        "tool_use" => Some(Block::ToolCall(ToolCall {
            call_id: text("id"),
            tool: text("name"),
            input: block["input"].clone(),
        })),
        _ => None,
    }
}

fn stop_reason(word: &str, blocks: &[Block]) -> StopReason {
    let calls = blocks.iter().any(|block| matches!(block, Block::ToolCall(_)));
    match word {
        "tool_use" => StopReason::ToolUse,
        // Both are a truncated response; the caller sees the difference when the next request no
        // longer fits.
        "max_tokens" | "model_context_window_exceeded" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        "pause_turn" => StopReason::Pause,
        // Stop reasons of a later version must not leave calls without results.
        _ if calls => StopReason::ToolUse,
        _ => StopReason::EndTurn,
    }
}

#[cfg(test)]
mod tests;
