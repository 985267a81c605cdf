//! Messages API: its headers, its rules for a history, its events.
//!
//! The rules are in `check`. Thinking blocks are signed here and verified when they return; a response with
//! tool calls must return unchanged.

mod check;

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};
use sojourn::base::{seal::mac, text::hex};

use super::provider::{Dialect, Refusal, Request, Said, Step, header, parse_or_text, pieces, refuse, sse};

pub const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];
/// A key that the fake rejects.
pub const BAD_KEY: &str = "sk-ant-revoked";

/// One fake endpoint; records its responses.
#[derive(Default)]
pub struct Anthropic {
    /// Sendable blocks of each response with tool calls, by the id of its first call.
    given: Mutex<HashMap<String, Vec<Value>>>,
    paused: AtomicBool,
}

/// Validates a request's body alone, without earlier responses.
pub fn accept(body: &Value) -> Result<(), Refusal> {
    check::body(body, VERSIONS[1])
}

/// Signature of a genuine thinking block.
pub fn sign(thinking: &str) -> String {
    hex(&mac(b"the fake's own key", thinking.as_bytes()))
}

/// Whether this fake signed the block.
fn is_genuine(block: &Value) -> bool {
    match block["type"].as_str() {
        Some("thinking") => block["thinking"].as_str().map(sign).as_deref() == block["signature"].as_str(),
        Some("redacted_thinking") => {
            let (secret, seal) =
                block["data"].as_str().and_then(|data| data.rsplit_once('.')).unwrap_or_default();
            !seal.is_empty() && sign(secret) == seal
        }
        _ => true,
    }
}

impl Dialect for Anthropic {
    const PATH: &'static str = "/v1/messages";
    const TYPES: &'static str = "anthropic";

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let denied = |message: &str| {
            Err(Refusal { status: 401, kind: "authentication_error", message: message.to_owned() })
        };
        match header(request, "x-api-key") {
            None | Some("") => return denied("x-api-key header is required"),
            Some(BAD_KEY) => return denied("invalid x-api-key"),
            Some(_) => {}
        }
        let version = match header(request, "anthropic-version") {
            None => return refuse("anthropic-version: header is required"),
            Some(version) if VERSIONS.contains(&version) => version,
            Some(version) => {
                return refuse(format!("anthropic-version: \"{version}\" is not a valid version"));
            }
        };
        if header(request, "content-type") != Some("application/json") {
            return refuse("content-type: must be application/json");
        }
        check::body(&request.body, version)?;
        let messages = request.body["messages"].as_array().expect("checked above");
        if messages.last().is_some_and(|last| last["role"] == "assistant")
            && !self.paused.load(Ordering::SeqCst)
        {
            return refuse("This model does not support assistant message prefill");
        }
        messages.iter().enumerate().try_for_each(|(at, message)| self.check_unaltered(at, message))
    }

    fn error_body(&self, refusal: &Refusal) -> Value {
        let error = json!({"type": refusal.kind, "message": refusal.message});
        json!({"type": "error", "error": error, "request_id": "req_011Fake"})
    }

    fn frames(&self, request: &Request, step: &Step) -> Vec<String> {
        let used = step.usage;
        let start = json!({"type": "message_start", "message": {
            "id": format!("msg_{}", request.call), "type": "message", "role": "assistant",
            "model": request.body["model"], "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": used.input, "cache_creation_input_tokens": used.cache_write,
                "cache_read_input_tokens": used.cache_read, "output_tokens": 1}}});
        let mut events = vec![start, json!({"type": "ping"})];
        let mut sendable = Vec::new();
        for (index, said) in step.said.iter().enumerate() {
            let (first, deltas, whole) = block(request.call, index, said);
            events.push(json!({"type": "content_block_start", "index": index, "content_block": first}));
            let delta = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
            events.extend(deltas.into_iter().map(delta));
            events.push(json!({"type": "content_block_stop", "index": index}));
            sendable.extend(check::is_sendable(&whole).then_some(whole));
        }
        while sendable.last().is_some_and(check::is_thinking) {
            sendable.pop();
        }
        let stop = step.stop.unwrap_or(if step.has_tools() { "tool_use" } else { "end_turn" });
        self.paused.store(stop == "pause_turn", Ordering::SeqCst);
        let whole = !step
            .said
            .iter()
            .any(|said| matches!(said, Said::Tool(_, input) if !parse_or_text(input).is_object()));
        if let Some(id) = sendable.iter().find_map(|block| block["id"].as_str()).filter(|_| whole) {
            self.given.lock().expect("no handler panics").insert(id.to_owned(), sendable.clone());
        }
        let delta = json!({"stop_reason": stop, "stop_sequence": null});
        events
            .push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": used.output}}));
        events.push(json!({"type": "message_stop"}));
        events.iter().map(|event| sse(event["type"].as_str().expect("each has one"), event)).collect()
    }

    fn error_frame(&self, kind: &str, message: &str) -> String {
        sse("error", &json!({"type": "error", "error": {"type": kind, "message": message}}))
    }
}

impl Anthropic {
    fn check_unaltered(&self, at: usize, message: &Value) -> Result<(), Refusal> {
        let content = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let given = self.given.lock().expect("no handler panics");
        let known = content.iter().filter_map(|block| block["id"].as_str()).find_map(|id| given.get(id));
        match known {
            Some(given) if !without_marks(content).ends_with(given) => refuse(format!(
                "messages.{at}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot \
                 be modified. These blocks must remain as they were in the original response."
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// The blocks without the sender's prompt cache marks.
fn without_marks(content: &[Value]) -> Vec<Value> {
    let mut content = content.to_vec();
    for block in content.iter_mut().filter_map(Value::as_object_mut) {
        block.remove("cache_control");
    }
    content
}

/// Start, deltas and complete form of one block.
fn block(call: usize, index: usize, said: &Said) -> (Value, Vec<Value>, Value) {
    match said {
        Said::Text(text) => {
            let deltas = pieces(text).into_iter().map(|text| json!({"type": "text_delta", "text": text}));
            (json!({"type": "text", "text": ""}), deltas.collect(), json!({"type": "text", "text": text}))
        }
        Said::Thinking(text) => {
            let signature = sign(text);
            let mut deltas: Vec<Value> = pieces(text)
                .into_iter()
                .map(|text| json!({"type": "thinking_delta", "thinking": text}))
                .collect();
            deltas.push(json!({"type": "signature_delta", "signature": signature}));
            let whole = json!({"type": "thinking", "thinking": text, "signature": signature});
            (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas, whole)
        }
        Said::Redacted(text) => {
            let whole = json!({"type": "redacted_thinking", "data": format!("{text}.{}", sign(text))});
            (whole.clone(), Vec::new(), whole)
        }
        Said::Tool(name, input) => {
            let id = format!("toolu_{call:03}_{index}");
            let pieces = pieces(input).into_iter();
            let deltas =
                pieces.map(|part| json!({"type": "input_json_delta", "partial_json": part})).collect();
            let form = |input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
            let whole = match parse_or_text(input) {
                Value::Object(input) => form(Value::Object(input)),
                // A client that received half of an object sends back its own replacement.
                _ => Value::Null,
            };
            (form(json!({})), deltas, whole)
        }
    }
}
