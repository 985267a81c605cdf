//! Parser of one streamed response.
//!
//! Called by `exchange::read`, frame by frame. An item counts once it is done; `response.completed` or
//! `response.incomplete` completes the response, and a stream that ends without one was interrupted.
//! (platform.openai.com/docs/api-reference/responses-streaming)

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    base::limit,
    domain::{Answer, Block, StopReason, Usage, conversation::ModelRequest, tool::ToolCall},
    model::{
        Delta, Fault,
        call_ids::CallIds,
        estimate::{said_bytes, tokens},
        exchange::{Reader, unavailable},
        openai,
        sse::Frame,
        tool_input,
    },
};

/// The part of a response that has arrived.
#[derive(Debug)]
pub(super) struct Stream {
    /// Items that are done, by their place.
    items: BTreeMap<usize, Value>,
    end: Option<End>,
    sent_bytes: usize,
    ids: CallIds,
}

/// The response at its end.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct End {
    status: String,
    output: Vec<Value>,
    usage: Option<UsageBody>,
    incomplete_details: Option<Incomplete>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct UsageBody {
    input_tokens: u64,
    output_tokens: u64,
    input_tokens_details: Option<InputDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Option<u64>,
}

impl Stream {
    /// Creates a parser for the response to `request`, whose body had `sent_bytes`.
    pub(super) fn new(request: &ModelRequest, sent_bytes: usize) -> Self {
        Self { items: BTreeMap::new(), end: None, sent_bytes, ids: CallIds::of(request) }
    }
}

impl Reader for Stream {
    fn frame(&mut self, frame: &Frame, deltas: &mut (dyn FnMut(Delta) + Send)) -> Result<bool, Fault> {
        let mut event: Value = serde_json::from_str(&frame.data)
            .map_err(|error| unavailable(&format!("an event of the stream is malformed: {error}")))?;
        let index = event["output_index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
        let text = event["delta"].as_str().unwrap_or_default().to_owned();
        match event["type"].as_str().unwrap_or("error") {
            "response.output_text.delta" | "response.refusal.delta" => deltas(Delta::Text { index, text }),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                deltas(Delta::Thinking { index, text });
            }
            "response.function_call_arguments.delta" => deltas(Delta::Input { bytes: text.len() }),
            "response.output_item.done" => {
                self.items.insert(index, event["item"].take());
            }
            "response.completed" | "response.incomplete" => {
                let end = serde_json::from_value(event["response"].take());
                self.end = Some(end.map_err(|error| unavailable(&format!("the end is malformed: {error}")))?);
                return Ok(true);
            }
            "response.failed" => return Err(openai::from_event(&event["response"]["error"])),
            // Its fields are documented beside the type, and are sent below `error`.
            "error" if event["error"].is_object() => return Err(openai::from_event(&event["error"])),
            "error" => return Err(openai::from_event(&event)),
            // Others repeat what these say.
            _ => {}
        }
        Ok(false)
    }

    fn finish(mut self) -> Result<Answer, Fault> {
        let Some(end) = self.end.take() else {
            return Err(unavailable("the stream ended before the response was complete"));
        };
        let mut raw: Vec<Value> = match end.output.len() > self.items.len() {
            true => end.output,
            false => self.items.into_values().collect(),
        };
        let mut blocks = Vec::new();
        let mut refused = false;
        for (at, item) in raw.iter_mut().enumerate() {
            match item["type"].as_str() {
                Some("reasoning") => blocks.push(Block::Thinking { text: joined(&item["summary"], "\n\n") }),
                Some("message") => {
                    let parts = item["content"].as_array();
                    refused |= parts.is_some_and(|parts| parts.iter().any(|part| part["type"] == "refusal"));
                    blocks.push(Block::Text { text: joined(&item["content"], "") });
                }
                Some("function_call") => blocks.push(Block::ToolCall(call(item, at, &mut self.ids))),
                _ => {}
            }
        }
        let has_calls = blocks.iter().any(|block| matches!(block, Block::ToolCall(_)));
        let reason = end.incomplete_details.and_then(|details| details.reason);
        let stop = match (end.status.as_str(), reason.as_deref()) {
            _ if refused => StopReason::Refusal,
            (_, Some("content_filter")) => StopReason::Refusal,
            ("incomplete", _) => StopReason::MaxTokens,
            _ if has_calls => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        };
        let usage = usage(end.usage, self.sent_bytes, said_bytes(&blocks));
        Ok(Answer { blocks, raw, stop, usage })
    }
}

/// Reads a call. What of its item no history may have is corrected in the item too.
fn call(item: &mut Value, at: usize, ids: &mut CallIds) -> ToolCall {
    let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let (sent_id, name, arguments) = (text("call_id"), text("name"), text("arguments"));
    let call = ToolCall {
        call_id: ids.take(&sent_id, at),
        tool: tool_input::word(&name),
        input: tool_input::parse(&arguments),
    };
    item["call_id"] = Value::from(call.call_id.as_str());
    item["name"] = Value::from(call.tool.as_str());
    if serde_json::from_str::<Value>(&arguments).is_ok_and(|parsed| parsed == call.input) {
        return call;
    }
    item["arguments"] = Value::from(call.input.to_string());
    call
}

/// Joins the texts of parts.
fn joined(parts: &Value, separator: &str) -> String {
    let texts = parts.as_array().into_iter().flatten();
    let texts = texts.filter_map(|part| part["text"].as_str().or(part["refusal"].as_str()));
    texts.collect::<Vec<_>>().join(separator)
}

fn usage(body: Option<UsageBody>, sent_bytes: usize, said_bytes: usize) -> Usage {
    let Some(body) = body else {
        // Estimated, so that a server without counts does not evade the limit on tokens.
        let (input_tokens, output_tokens) = (tokens(sent_bytes), tokens(said_bytes));
        return Usage { input_tokens, output_tokens, ..Usage::default() };
    };
    let input = body.input_tokens.min(limit::MODEL_TOKENS_MAX);
    let cached = body.input_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0).min(input);
    Usage {
        input_tokens: input - cached,
        output_tokens: body.output_tokens.min(limit::MODEL_TOKENS_MAX),
        cache_read_tokens: cached,
        ..Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;
    use crate::domain::conversation::ModelOptions;

    fn read(events: &[Value]) -> Result<Answer, Fault> {
        let request = ModelRequest {
            model: "m".to_owned(),
            system: String::new(),
            tools: Vec::new(),
            history: Vec::new(),
            max_tokens: 1,
            options: ModelOptions::default(),
            files: HashMap::new(),
        };
        let mut stream = Stream::new(&request, 40);
        for event in events {
            let frame = Frame { event: String::new(), data: event.to_string() };
            if stream.frame(&frame, &mut |_| {})? {
                break;
            }
        }
        stream.finish()
    }

    fn done(at: usize, item: Value) -> Value {
        json!({"type": "response.output_item.done", "output_index": at, "item": item})
    }

    #[test]
    fn arguments_that_no_history_may_have_are_corrected_in_the_item_too() {
        let item = json!({"type": "function_call", "call_id": "", "name": "bash", "arguments": "{\"comm"});
        let end = json!({"type": "response.incomplete", "response": {"status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"}}});
        let answer = read(&[done(0, item), end]).expect("an answer");
        assert_eq!(answer.stop, StopReason::MaxTokens);
        let call = answer.tool_calls().next().expect("a call");
        assert_eq!(answer.raw[0]["call_id"], call.call_id.as_str());
        assert_eq!(answer.raw[0]["arguments"], call.input.to_string());
        assert_eq!(answer.usage.input_tokens, 10, "an estimate");
    }

    #[test]
    fn each_failure_says_what_the_caller_will_do() {
        let failed = |code: &str| {
            let error = json!({"code": code, "message": "no"});
            read(&[json!({"type": "response.failed", "response": {"status": "failed", "error": error}})])
        };
        assert!(matches!(failed("server_error"), Err(Fault::Unavailable { .. })));
        assert!(matches!(failed("rate_limit_exceeded"), Err(Fault::Unavailable { .. })));
        assert!(matches!(failed("context_length_exceeded"), Err(Fault::ContextTooLong { .. })));
        assert!(matches!(failed("image_parse_error"), Err(Fault::FilesRefused { .. })));
        assert!(matches!(failed("invalid_prompt"), Err(Fault::Refused { .. })));
        assert!(matches!(failed("server_is_overloaded"), Err(Fault::Unavailable { .. })));
        let nested = json!({"type": "error", "error": {"type": "invalid_request_error",
            "code": "context_length_exceeded", "message": "too long"}});
        assert!(matches!(read(&[nested]), Err(Fault::ContextTooLong { .. })));
        let flat = json!({"type": "error", "code": "insufficient_quota", "message": "no"});
        assert!(matches!(read(&[flat]), Err(Fault::PaymentRequired { .. })));
        assert!(matches!(read(&[]), Err(Fault::Unavailable { .. })), "the stream was cut");
    }

    #[test]
    fn a_refusal_is_no_result() {
        let item = json!({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]});
        let answer = read(&[
            done(0, item),
            json!({"type": "response.completed", "response": {"status": "completed"}}),
        ]);
        let answer = answer.expect("an answer");
        assert_eq!(
            (answer.stop, &answer.blocks[0]),
            (StopReason::Refusal, &Block::Text { text: "No.".to_owned() })
        );
    }
}
