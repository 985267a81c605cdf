//! Responses in each provider's format, and the rules for requests.

use std::collections::HashSet;

use serde_json::{Value, json};
use sojourn::{
    domain::{Block, Message, conversation::ModelRequest},
    model,
};

use super::{anthropic, openai, responses};

/// Providers with a strict fake.
pub const PROVIDERS: [&str; 3] = ["anthropic", "openai", "openai/responses"];

/// Raw blocks of `provider` for this content.
pub fn raw(provider: &str, blocks: &[Block]) -> Vec<Value> {
    match provider {
        "anthropic" => blocks.iter().map(anthropic_block).collect(),
        "openai" => vec![openai_message(blocks)],
        "openai/responses" => response_items(blocks),
        _ => Vec::new(),
    }
}

fn anthropic_block(block: &Block) -> Value {
    match block {
        Block::Text { text } => json!({"type": "text", "text": text}),
        Block::Thinking { text } => {
            json!({"type": "thinking", "thinking": text, "signature": anthropic::sign(text)})
        }
        Block::ToolCall(call) => {
            json!({"type": "tool_use", "id": call.call_id, "name": call.tool, "input": call.input})
        }
    }
}

/// Items of a response, of which some have reasoning that only their provider knows.
fn response_items(blocks: &[Block]) -> Vec<Value> {
    let has_reasoning = blocks.iter().any(|block| matches!(block, Block::Thinking { .. }));
    let link = if has_reasoning { "_r" } else { "" };
    let items = blocks.iter().enumerate().map(|(at, block)| match block {
        Block::Text { text } => responses::message(&format!("msg_{at}{link}"), text),
        Block::Thinking { text } => {
            responses::reasoning(&format!("rs_{at}"), text, blocks.len().is_multiple_of(2))
        }
        Block::ToolCall(call) => {
            let id = format!("fc_{at}{link}");
            responses::call(&id, &call.call_id, &call.tool, &call.input.to_string())
        }
    });
    items.collect()
}

fn openai_message(blocks: &[Block]) -> Value {
    let mut message = json!({"role": "assistant", "content": null});
    let mut calls = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } if text.trim().is_empty() => {}
            Block::Text { text } => message["content"] = json!(text),
            Block::Thinking { text } => message["reasoning_content"] = json!(text),
            Block::ToolCall(call) => {
                let function = json!({"name": call.tool, "arguments": call.input.to_string()});
                calls.push(json!({"id": call.call_id, "type": "function", "function": function}));
            }
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

/// Rules that all providers share: each call is answered once, in order, before any other message.
pub fn check(history: &[Message]) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut seen = HashSet::new();
    for message in history {
        match message {
            Message::Results { results } => {
                let given: Vec<_> = results.iter().map(|result| result.call_id.as_str()).collect();
                if given != open {
                    return Err(format!("the calls {open:?} are answered by {given:?}"));
                }
                open.clear();
            }
            Message::User { .. } | Message::Assistant { .. } if !open.is_empty() => {
                return Err(format!("the calls {open:?} are not answered"));
            }
            Message::User { .. } => {}
            Message::Assistant { blocks, .. } => {
                for block in blocks {
                    let Block::ToolCall(call) = block else { continue };
                    if !seen.insert(call.call_id.as_str()) {
                        return Err(format!("{} is called twice", call.call_id));
                    }
                    open.push(&call.call_id);
                }
            }
        }
    }
    match (open.as_slice(), history.first()) {
        ([], Some(Message::User { .. })) => Ok(()),
        ([], _) => Err("a history begins with its caller".to_owned()),
        (open, _) => Err(format!("the calls {open:?} are not answered")),
    }
}

/// Encodes a request for a provider and validates it with the provider's strict fake.
pub fn check_strictly(provider: &str, request: &ModelRequest) -> Result<(), String> {
    let bytes = model::encode(provider, request);
    let body: Value = serde_json::from_slice(&bytes).expect("a request is JSON");
    let checked = match provider {
        "anthropic" => anthropic::accept(&body),
        "openai/responses" => responses::accept(&body),
        _ => openai::accept(&body),
    };
    checked.map_err(|refusal| refusal.message)
}
