//! Request body: a pure function of the history.
//!
//! Called by the adapter. Equal histories give equal bytes, and the items of a step start with those of the previous step,
//! because the provider caches by prefix automatically.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    domain::{
        Block, Message,
        content::{Content, PDF},
        conversation::{Effort, ModelRequest},
        tool::{ToolResult, ToolSpec},
    },
    model::{sent_file::SentFile, strict::is_strict, tool_input},
};

/// Fields in the order in which they are sent; the part that changes comes last.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_output_tokens: u64,
    stream: bool,
    /// The log of the session is the only copy of the conversation.
    store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    include: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    input: Vec<Value>,
}

/// Replaces a blank message.
const BLANK: &str = "(empty)";
/// Smallest `max_output_tokens` that the provider accepts.
const OUTPUT_TOKENS_MIN: u64 = 16;

/// Returns the request's body as JSON.
///
/// Reasoning is asked for if the agent has `effort` or `thinking`, because other models refuse the parameter.
pub(in crate::model) fn body(request: &ModelRequest, provider: &str) -> Vec<u8> {
    let (effort, thinking) = (request.options.effort, request.options.thinking);
    let reasons = effort.is_some() || thinking.is_some();
    let body = Body {
        model: &request.model,
        max_output_tokens: request.max_tokens.max(OUTPUT_TOKENS_MIN),
        stream: true,
        store: false,
        reasoning: reasons.then(|| match effort {
            Some(effort) => json!({"effort": effort_word(effort), "summary": "auto"}),
            None => json!({"summary": "auto"}),
        }),
        include: if reasons { vec!["reasoning.encrypted_content"] } else { Vec::new() },
        tools: request.tools.iter().map(tool).collect(),
        instructions: request.system.trim(),
        input: items(request, provider),
    };
    serde_json::to_vec(&body).expect("maps with string keys are JSON")
}

fn items(request: &ModelRequest, provider: &str) -> Vec<Value> {
    let mut items = Vec::new();
    for message in &request.history {
        match message {
            Message::User { text, content } if content.is_empty() => {
                items.push(user(vec![input_text(text)]));
            }
            Message::User { content, .. } => items.push(user(parts(content, request))),
            Message::Results { results } => items.extend(results.iter().map(|done| result(done, request))),
            Message::Assistant { provider: author, raw, .. } if author == provider => items.extend(own(raw)),
            Message::Assistant { blocks, .. } => items.extend(blocks.iter().filter_map(foreign)),
        }
    }
    items
}

fn user(content: Vec<Value>) -> Value {
    json!({"type": "message", "role": "user", "content": content})
}

/// Returns the provider's own items, as they were received.
///
/// Reasoning without its encrypted content is only known to a provider that stores responses; then the other items are
/// sent without the ids that refer to it. Reasoning at the end, of a truncated response, needs an item behind it.
fn own(raw: &[Value]) -> Vec<Value> {
    let is_reasoning = |item: &Value| item["type"] == "reasoning";
    let is_sealed = |item: &Value| item["encrypted_content"].is_string();
    let mut items: Vec<Value> = if raw.iter().filter(|item| is_reasoning(item)).all(is_sealed) {
        raw.to_vec()
    } else {
        raw.iter().filter(|item| !is_reasoning(item)).filter_map(unlinked).collect()
    };
    while items.last().is_some_and(is_reasoning) {
        items.pop();
    }
    items
}

/// Returns an item without its id.
fn unlinked(item: &Value) -> Option<Value> {
    match item["type"].as_str()? {
        "function_call" => Some(json!({
            "type": "function_call",
            "call_id": item["call_id"],
            "name": item["name"],
            "arguments": item["arguments"],
        })),
        "message" => {
            let texts = item["content"].as_array().into_iter().flatten();
            let texts = texts.filter_map(|part| part["text"].as_str().or(part["refusal"].as_str()));
            assistant(&texts.collect::<Vec<_>>().join(""))
        }
        _ => None,
    }
}

fn assistant(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "message", "role": "assistant", "content": text}))
}

/// Converts a block of another provider; thinking is omitted.
fn foreign(block: &Block) -> Option<Value> {
    match block {
        Block::Text { text } => assistant(text),
        Block::Thinking { .. } => None,
        Block::ToolCall(call) => Some(json!({
            "type": "function_call",
            "call_id": tool_input::call_id(&call.call_id),
            "name": tool_input::word(&call.tool),
            "arguments": tool_input::object(&call.input).to_string(),
        })),
    }
}

fn result(result: &ToolResult, request: &ModelRequest) -> Value {
    let output = if result.output.trim().is_empty() { BLANK } else { &result.output };
    // The API has no flag for a failed tool, so the text states it.
    let text = if result.is_error { format!("Error: {output}") } else { output.to_owned() };
    let output = match result.content.is_empty() {
        true => Value::from(text),
        false => [vec![input_text(&text)], parts(&result.content, request)].concat().into(),
    };
    json!({"type": "function_call_output", "call_id": tool_input::call_id(&result.call_id), "output": output})
}

/// Converts parts; a file is named before it is shown.
fn parts(content: &[Content], request: &ModelRequest) -> Vec<Value> {
    let mut parts = Vec::with_capacity(2 * content.len());
    for part in content {
        if let Content::Text { text } = part {
            parts.push(input_text(text));
        }
        let Some(file) = part.file() else { continue };
        parts.push(input_text(&file.label()));
        parts.extend(match SentFile::of(part, request) {
            None => None,
            Some(SentFile::Image { media_type, base64 }) => {
                let url = format!("data:{media_type};base64,{base64}");
                Some(json!({"type": "input_image", "detail": "auto", "image_url": url}))
            }
            Some(SentFile::Pdf { name, base64 }) => {
                let data = format!("data:{PDF};base64,{base64}");
                Some(json!({"type": "input_file", "filename": name, "file_data": data}))
            }
            Some(SentFile::Text { text }) => Some(input_text(text)),
        });
    }
    parts
}

fn input_text(text: &str) -> Value {
    json!({"type": "input_text", "text": if text.trim().is_empty() { BLANK } else { text }})
}

fn tool(spec: &ToolSpec) -> Value {
    json!({
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.input_schema,
        // The provider's default is true, which most schemas do not fit.
        "strict": is_strict(spec),
    })
}

fn effort_word(effort: Effort) -> &'static str {
    match effort {
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: &str, more: &Value) -> Value {
        let mut item = json!({"type": kind, "id": "x_1", "status": "completed"});
        item.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        item
    }

    #[test]
    fn items_are_sent_back_as_they_came_while_their_reasoning_is_known() {
        let text = json!({"role": "assistant", "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]});
        let sealed = item("reasoning", &json!({"summary": [], "encrypted_content": "s"}));
        let raw = [sealed.clone(), item("message", &text)];
        assert_eq!(own(&raw), raw);
        let known_there = item("reasoning", &json!({"summary": []}));
        let raw = [known_there.clone(), item("message", &text)];
        assert_eq!(own(&raw), [json!({"type": "message", "role": "assistant", "content": "Hi."})]);
        assert_eq!(own(&[item("message", &text), sealed]).len(), 1, "truncated while it reasoned");
        assert!(own(&[known_there]).is_empty());
    }
}
