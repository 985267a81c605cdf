//! Request body: a pure function of the history.
//!
//! Called by the adapter. Equal histories give equal bytes, and the items of a step start with those of the previous step,
//! because the provider caches by prefix automatically.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    domain::{
        Block, Message,
        content::{Content, PDF},
        conversation::ModelRequest,
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
/// The name of no provider.
const NOBODY: &str = "";
/// Smallest `max_output_tokens` that the provider accepts.
const OUTPUT_TOKENS_MIN: u64 = 16;

/// Returns the request's body as JSON.
///
/// Reasoning is asked for if the agent has `effort` or `thinking`, because other models refuse the parameters, and refuse
/// reasoning in the history. Its summary is asked for only with `thinking`: providers show it to verified organizations.
pub(in crate::model) fn body(request: &ModelRequest, provider: &str) -> Vec<u8> {
    let (effort, thinking) = (request.options.effort, request.options.thinking);
    let reasons = effort.is_some() || thinking.is_some();
    let mut reasoning = Map::new();
    reasoning.extend(effort.map(|effort| ("effort".to_owned(), Value::from(effort.name()))));
    reasoning.extend(thinking.map(|_| ("summary".to_owned(), Value::from("auto"))));
    let body = Body {
        model: &request.model,
        max_output_tokens: request.max_tokens.max(OUTPUT_TOKENS_MIN),
        stream: true,
        store: false,
        reasoning: reasons.then_some(reasoning.into()),
        include: if reasons { vec!["reasoning.encrypted_content"] } else { Vec::new() },
        tools: request.tools.iter().map(tool).collect(),
        instructions: request.system.trim(),
        input: items(request, if reasons { provider } else { NOBODY }),
    };
    serde_json::to_vec(&body).expect("maps with string keys are JSON")
}

/// Returns the body without what only the provider can read, after it refused that.
pub(super) fn plain_body(request: &ModelRequest) -> Vec<u8> {
    body(request, NOBODY)
}

/// Returns the items of a history; of responses of `provider` as they were received.
fn items(request: &ModelRequest, provider: &str) -> Vec<Value> {
    let mut items = Vec::new();
    for message in &request.history {
        match message {
            Message::User { text, content } if content.is_empty() => {
                items.push(user(vec![input_text(text)]));
            }
            Message::User { content, .. } => items.push(user(parts(content, request))),
            Message::Results { results } => items.extend(results.iter().map(|done| result(done, request))),
            Message::Assistant { provider: author, raw, .. } if author == provider && is_sealed(raw) => {
                items.extend(own(raw));
            }
            Message::Assistant { blocks, .. } => items.extend(blocks.iter().filter_map(foreign)),
        }
    }
    items
}

fn user(content: Vec<Value>) -> Value {
    json!({"type": "message", "role": "user", "content": content})
}

/// Whether all reasoning of a response can be sent back: its encrypted content is the only copy.
fn is_sealed(raw: &[Value]) -> bool {
    raw.iter().filter(|item| is_reasoning(item)).all(|item| item["encrypted_content"].is_string())
}

/// Returns the provider's own items, with the fields of reasoning that a request may have. Reasoning at the end, of a
/// truncated response, needs an item behind it.
fn own(raw: &[Value]) -> Vec<Value> {
    let mut items = raw.to_vec();
    while items.last().is_some_and(is_reasoning) {
        items.pop();
    }
    for item in items.iter_mut().filter(|item| is_reasoning(item)) {
        if let Some(fields) = item.as_object_mut() {
            fields.retain(|name, _| ["type", "id", "summary", "encrypted_content"].contains(&name.as_str()));
        }
    }
    items
}

fn is_reasoning(item: &Value) -> bool {
    item["type"] == "reasoning"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reasoning(more: Value) -> Value {
        let mut item =
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "status": null, "content": []});
        item.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        item
    }

    #[test]
    fn reasoning_is_sent_back_with_the_fields_that_a_request_may_have() {
        let sealed = reasoning(json!({"encrypted_content": "s"}));
        let text = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": []});
        let sent = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "s"});
        assert_eq!(own(&[sealed.clone(), text.clone()]), [sent, text.clone()]);
        assert_eq!(own(&[text.clone(), sealed]), [text], "truncated while it reasoned");
        assert!(!is_sealed(&[reasoning(json!({}))]));
    }
}
