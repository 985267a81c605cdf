//! Request body: a pure function of the history.
//!
//! Called by the adapter. Equal histories give equal bytes, and the messages of a step start with
//! those of the previous step, because compatible servers cache by prefix automatically.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    domain::{
        Block, Message,
        content::{Content, PDF},
        conversation::{Effort, ModelRequest},
        tool::{ToolCall, ToolResult, ToolSpec},
    },
    model::{sent_file::SentFile, strict::is_strict, tool_input},
};

/// Fields in the order in which they are sent; the part that changes comes last.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_completion_tokens: u64,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    messages: Vec<Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// Replaces a blank message.
const BLANK: &str = "(empty)";
/// The field in which some servers return their reasoning.
pub(super) const REASONING: &str = "reasoning_content";

/// Returns the request's body as JSON.
pub(in crate::model) fn body(request: &ModelRequest, provider: &str) -> Vec<u8> {
    let body = Body {
        model: &request.model,
        max_completion_tokens: request.max_tokens,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        reasoning_effort: request.options.effort.map(Effort::name),
        tools: request.tools.iter().map(tool).collect(),
        messages: messages(request, provider),
    };
    serde_json::to_vec(&body).expect("maps with string keys are JSON")
}

fn messages(request: &ModelRequest, provider: &str) -> Vec<Value> {
    let mut messages = Vec::new();
    if !request.system.trim().is_empty() {
        messages.push(json!({"role": "system", "content": request.system}));
    }
    let is_user = |message: &Message| matches!(message, Message::User { .. });
    let loop_start = request.history.iter().rposition(is_user).unwrap_or(0);
    for (at, message) in request.history.iter().enumerate() {
        match message {
            Message::User { text, content } if content.is_empty() => {
                push_user(&mut messages, vec![text_part(text)]);
            }
            Message::User { content, .. } => push_user(&mut messages, parts(content, request)),
            Message::Results { results } => {
                messages.extend(results.iter().map(result));
                // Results can have no files, so these follow as a message of the user.
                let files: Vec<_> =
                    results.iter().flat_map(|result| parts(&result.content, request)).collect();
                if !files.is_empty() {
                    push_user(&mut messages, files);
                }
            }
            Message::Assistant { provider: author, raw, blocks } => {
                let message = if author == provider { own(raw, at > loop_start) } else { foreign(blocks) };
                messages.extend(message.map(Value::Object));
            }
        }
    }
    messages
}

/// Joins adjacent messages into one, because chat templates require alternating roles. One without files is a string,
/// which every compatible server takes.
fn push_user(messages: &mut Vec<Value>, mut parts: Vec<Value>) {
    if let Some(last) = messages.pop_if(|last| last["role"] == "user") {
        let before = match &last["content"] {
            Value::Array(parts) => parts.clone(),
            text => vec![json!({"type": "text", "text": text})],
        };
        parts.splice(0..0, before);
    }
    let texts: Option<Vec<_>> =
        parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text")).collect();
    let content = texts.map(|texts| Value::from(texts.join("\n\n")));
    messages.push(json!({"role": "user", "content": content.unwrap_or_else(|| Value::from(parts))}));
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": if text.trim().is_empty() { BLANK } else { text }})
}

/// Converts parts; a file is named before it is shown.
/// (platform.openai.com/docs/guides/images-vision, .../pdf-files)
fn parts(content: &[Content], request: &ModelRequest) -> Vec<Value> {
    let mut parts = Vec::with_capacity(2 * content.len());
    for part in content {
        if let Content::Text { text } = part {
            parts.push(text_part(text));
        }
        let Some(file) = part.file() else { continue };
        parts.push(text_part(&file.label()));
        parts.extend(match SentFile::of(part, request) {
            None => None,
            Some(SentFile::Image { media_type, base64 }) => {
                let url = format!("data:{media_type};base64,{base64}");
                Some(json!({"type": "image_url", "image_url": {"url": url}}))
            }
            Some(SentFile::Pdf { name, base64 }) => {
                let data = format!("data:{PDF};base64,{base64}");
                Some(json!({"type": "file", "file": {"filename": name, "file_data": data}}))
            }
            Some(SentFile::Text { text }) => Some(text_part(text)),
        });
    }
    parts
}

/// Returns the provider's own message verbatim.
///
/// Reasoning is sent back only within its own tool loop: servers that return it require it there
/// and reject or ignore it later.
fn own(raw: &[Value], in_open_loop: bool) -> Option<Map<String, Value>> {
    let mut message = raw.first()?.as_object()?.clone();
    if !in_open_loop {
        message.shift_remove(REASONING);
    }
    has_content(&message).then_some(message)
}

/// Converts another provider's response; its thinking is omitted.
fn foreign(blocks: &[Block]) -> Option<Map<String, Value>> {
    let mut text = String::new();
    let mut calls = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text: more } => text.push_str(more),
            Block::Thinking { .. } => {}
            Block::ToolCall(call) => calls.push(ToolCall {
                call_id: tool_input::call_id(&call.call_id),
                tool: tool_input::word(&call.tool),
                input: tool_input::object(&call.input),
            }),
        }
    }
    let message = assistant(&text, "", &calls);
    has_content(&message).then_some(message)
}

/// Returns an assistant message in the form in which it is sent back.
pub(super) fn assistant(text: &str, reasoning: &str, calls: &[ToolCall]) -> Map<String, Value> {
    let call = |call: &ToolCall| {
        let function = json!({"name": call.tool, "arguments": call.input.to_string()});
        json!({"id": call.call_id, "type": "function", "function": function})
    };
    let content = if text.trim().is_empty() { Value::Null } else { Value::from(text) };
    let mut message =
        Map::from_iter([("role".to_owned(), Value::from("assistant")), ("content".to_owned(), content)]);
    if !reasoning.is_empty() {
        message.insert(REASONING.to_owned(), Value::from(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.iter().map(call).collect());
    }
    message
}

// Servers reject a message with neither text nor calls.
fn has_content(message: &Map<String, Value>) -> bool {
    let has = |field| message.get(field).is_some_and(|value: &Value| !value.is_null());
    has("content") || has("tool_calls")
}

fn result(result: &ToolResult) -> Value {
    let output = if result.output.trim().is_empty() { BLANK } else { &result.output };
    // The API has no flag for a failed tool, so the text states it.
    let content = if result.is_error { format!("Error: {output}") } else { output.to_owned() };
    json!({"role": "tool", "tool_call_id": tool_input::call_id(&result.call_id), "content": content})
}

fn tool(spec: &ToolSpec) -> Value {
    let mut function =
        json!({"name": spec.name, "description": spec.description, "parameters": spec.input_schema});
    if is_strict(spec) {
        function["strict"] = Value::Bool(true);
    }
    json!({"type": "function", "function": function})
}

#[cfg(test)]
mod tests;
