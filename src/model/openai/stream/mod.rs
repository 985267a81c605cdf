//! Parser of one streamed completion.
//!
//! Called by `exchange::read`, frame by frame. A finish reason completes the response; a stream
//! that ends without one was interrupted. Errors of servers (repeated ids, missing counts, invalid
//! names) are corrected here. (platform.openai.com/docs/api-reference/chat-streaming)

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{
    fault::{self, ErrorBody},
    request,
};
use crate::{
    base::limit,
    domain::{Answer, Block, StopReason, Usage, conversation::ModelRequest, tool::ToolCall},
    model::{
        Delta, Fault,
        call_ids::CallIds,
        estimate::tokens,
        exchange::{Reader, unavailable},
        sse::Frame,
        tool_input,
    },
};

/// The part of a completion that has arrived.
#[derive(Debug)]
pub(super) struct Stream {
    text: String,
    reasoning: String,
    refused: bool,
    calls: BTreeMap<usize, Call>,
    finish: Option<String>,
    usage: Option<UsageBody>,
    done: bool,
    sent_bytes: usize,
    ids: CallIds,
}

/// A tool call, received so far; its arguments are a JSON string.
#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Chunk {
    choices: Vec<Choice>,
    usage: Option<UsageBody>,
    error: Option<ErrorBody>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    index: usize,
    delta: Option<Piece>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Piece {
    content: Option<String>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CallPiece {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct UsageBody {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl Stream {
    /// Creates a parser for the response to `request`, whose body had `sent_bytes`.
    pub(super) fn new(request: &ModelRequest, sent_bytes: usize) -> Self {
        Self {
            text: String::new(),
            reasoning: String::new(),
            refused: false,
            calls: BTreeMap::new(),
            finish: None,
            usage: None,
            done: false,
            sent_bytes,
            ids: CallIds::of(request),
        }
    }

    // Thinking is block 0 and text is block 1; they may alternate.
    fn grow(&mut self, piece: Piece, deltas: &mut (dyn FnMut(Delta) + Send)) {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(text) = filled(piece.reasoning_content).or(filled(piece.reasoning)) {
            self.reasoning.push_str(&text);
            deltas(Delta::Thinking { index: 0, text });
        }
        if let Some(text) = filled(piece.content) {
            self.text.push_str(&text);
            deltas(Delta::Text { index: 1, text });
        }
        if let Some(text) = filled(piece.refusal) {
            self.refused = true;
            self.text.push_str(&text);
            deltas(Delta::Text { index: 1, text });
        }
        for call in piece.tool_calls.unwrap_or_default() {
            let arguments = call.function.as_ref().and_then(|function| function.arguments.as_ref());
            deltas(Delta::Input { bytes: arguments.map_or(0, String::len) });
            self.grow_call(call);
        }
    }

    fn grow_call(&mut self, piece: CallPiece) {
        let last = self.calls.last_key_value();
        let begins = piece.id.as_deref().is_some_and(|id| !id.is_empty());
        // Some servers omit the index; then a new id starts the next call.
        let index = piece.index.unwrap_or_else(|| match last {
            None => 0,
            Some((index, call)) if begins && piece.id.as_deref() != Some(&call.id) => index.saturating_add(1),
            Some((index, _)) => *index,
        });
        let call = self.calls.entry(index).or_default();
        if let Some(id) = piece.id.filter(|_| begins && call.id.is_empty()) {
            call.id = id;
        }
        let function = piece.function.unwrap_or_default();
        // Some servers repeat the name in each chunk instead of extending it.
        if let Some(name) = function.name.filter(|name| *name != call.name) {
            call.name.push_str(&name);
        }
        call.arguments.push_str(function.arguments.as_deref().unwrap_or_default());
    }

    fn usage(&self, said_bytes: usize) -> Usage {
        let Some(body) = self.usage else {
            // Estimated, so that a server without counts does not evade the limit on tokens.
            let (input_tokens, output_tokens) = (tokens(self.sent_bytes), tokens(said_bytes));
            return Usage { input_tokens, output_tokens, ..Usage::default() };
        };
        let prompt = body.prompt_tokens.min(limit::MODEL_TOKENS_MAX);
        let cached = body.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        let cached = cached.min(prompt);
        Usage {
            input_tokens: prompt - cached,
            output_tokens: body.completion_tokens.min(limit::MODEL_TOKENS_MAX),
            cache_read_tokens: cached,
            ..Usage::default()
        }
    }
}

impl Reader for Stream {
    fn frame(&mut self, frame: &Frame, deltas: &mut (dyn FnMut(Delta) + Send)) -> Result<bool, Fault> {
        if frame.data.trim() == "[DONE]" {
            self.done = true;
            return Ok(true);
        }
        let chunk: Chunk = serde_json::from_str(&frame.data)
            .map_err(|error| unavailable(&format!("a chunk of the stream is malformed: {error}")))?;
        if let Some(error) = chunk.error {
            return Err(fault::from_chunk(&error));
        }
        self.usage = chunk.usage.or(self.usage);
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            self.grow(choice.delta.unwrap_or_default(), deltas);
            self.finish = choice.finish_reason.or(self.finish.take());
        }
        Ok(false)
    }

    fn finish(mut self) -> Result<Answer, Fault> {
        // Some servers close without `[DONE]`; only the finish reason is required.
        let Some(finish) = self.finish.take() else {
            return Err(unavailable("the stream ended before the response was complete"));
        };
        let calls: Vec<ToolCall> = std::mem::take(&mut self.calls)
            .into_values()
            .enumerate()
            .map(|(at, call)| call.finish(at, &mut self.ids))
            .collect();
        let said_bytes = self.text.len()
            + self.reasoning.len()
            + calls.iter().map(|call| call.input.to_string().len()).sum::<usize>();
        let raw = vec![Value::Object(request::assistant(&self.text, &self.reasoning, &calls))];
        let usage = self.usage(said_bytes);
        let stop = if self.refused { StopReason::Refusal } else { stop_reason(&finish, !calls.is_empty()) };
        let mut blocks = Vec::new();
        if !self.reasoning.is_empty() {
            blocks.push(Block::Thinking { text: self.reasoning });
        }
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: self.text });
        }
        blocks.extend(calls.into_iter().map(Block::ToolCall));
        Ok(Answer { blocks, raw, stop, usage })
    }
}

impl Call {
    fn finish(self, at: usize, ids: &mut CallIds) -> ToolCall {
        let call_id = ids.take(&self.id, at);
        ToolCall { call_id, tool: tool_input::word(&self.name), input: tool_input::parse(&self.arguments) }
    }
}

fn stop_reason(finish: &str, has_calls: bool) -> StopReason {
    match finish {
        "length" => StopReason::MaxTokens,
        "content_filter" => StopReason::Refusal,
        // Some servers report `stop` together with calls; calls need results.
        _ if has_calls => StopReason::ToolUse,
        _ => StopReason::EndTurn,
    }
}

#[cfg(test)]
mod tests;
