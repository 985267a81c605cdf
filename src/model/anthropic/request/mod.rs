//! Request body: a pure function of the history.
//!
//! Called by the adapter. Equal histories give equal bytes, and the messages of a step start with
//! those of the previous step, so that the provider's prompt cache hits. Every history that the log
//! can contain becomes a request that the provider accepts.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    base::limit,
    domain::{
        Block, Message,
        content::{Content, PDF},
        conversation::ModelRequest,
        tool::{ToolResult, ToolSpec},
    },
    model::{sent_file::SentFile, strict::is_strict, tool_input},
};

/// Provider name in model names, credentials and histories.
pub(crate) const PROVIDER: &str = "anthropic";

/// Fields in the order in which they are sent; the part that changes comes last.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Value>,
    messages: Vec<Turn>,
}

/// All adjacent messages of one role in one turn, as the provider requires.
#[derive(Debug, PartialEq, Serialize)]
struct Turn {
    role: &'static str,
    content: Vec<Value>,
}

const USER: &str = "user";
const ASSISTANT: &str = "assistant";
/// Replaces a blank message, which the provider rejects.
const BLANK: &str = "(empty)";

/// Returns the request's body as JSON.
pub(in crate::model) fn body(request: &ModelRequest) -> Vec<u8> {
    let messages = turns(request);
    let mut body = Body {
        model: &request.model,
        max_tokens: request.max_tokens,
        stream: true,
        thinking: thinking(request, &messages),
        output_config: request.options.effort.map(|effort| json!({"effort": effort.name()})),
        tools: request.tools.iter().map(|spec| tool(spec, &request.model)).collect(),
        system: system(&request.system),
        messages,
    };
    set_cache_points(&mut body);
    serde_json::to_vec(&body).expect("maps with string keys are JSON")
}

/// Sets cache breakpoints at the end of each stable part: tools, system, and the last two points at
/// which the history was sent. The second of those is where the previous request wrote to the
/// cache, so it always hits.
fn set_cache_points(body: &mut Body<'_>) {
    let users = body.messages.iter_mut().rev().filter(|turn| turn.role == USER);
    let newest = users.take(limit::MODEL_CACHE_POINTS_MAX - 2).filter_map(|turn| turn.content.last_mut());
    for block in newest.chain(body.tools.last_mut()).chain(body.system.last_mut()) {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn tool(spec: &ToolSpec, model: &str) -> Value {
    let mut tool = json!({
        "name": spec.name,
        "description": spec.description,
        "input_schema": spec.input_schema,
    });
    if is_strict(spec) && takes_strict_tools(model) {
        tool["strict"] = Value::Bool(true);
    }
    tool
}

fn system(prompt: &str) -> Vec<Value> {
    if prompt.trim().is_empty() { Vec::new() } else { vec![text(prompt)] }
}

fn turns(request: &ModelRequest) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for message in &request.history {
        let (role, content) = match message {
            Message::User { text: words, content } if content.is_empty() => (USER, vec![text(words)]),
            Message::User { content, .. } => (USER, parts(content, request)),
            Message::Results { results } => {
                // An error has only text, so its files follow all results.
                let files = results.iter().filter(|done| done.is_error);
                let files: Vec<_> = files.flat_map(|done| parts(&done.content, request)).collect();
                let results: Vec<_> = results.iter().map(|done| result(done, request)).collect();
                (USER, [results, files].concat())
            }
            Message::Assistant { provider, raw, blocks } => {
                (ASSISTANT, if provider == PROVIDER { own(raw) } else { foreign(blocks) })
            }
        };
        // A response without text or calls is omitted; its neighbors are merged.
        match turns.last_mut() {
            _ if content.is_empty() => {}
            Some(last) if last.role == role => last.content.extend(content),
            Some(_) | None => turns.push(Turn { role, content }),
        }
    }
    turns
}

/// Returns the provider's own blocks verbatim, without those that it rejects in a history: blank
/// text, and thinking at the very end (a response that was truncated while thinking).
fn own(raw: &[Value]) -> Vec<Value> {
    let sendable = |block: &&Value| {
        block["type"] != "text" || block["text"].as_str().is_some_and(|text| !text.trim().is_empty())
    };
    let mut content: Vec<Value> = raw.iter().filter(sendable).cloned().collect();
    while content.last().is_some_and(is_thinking) {
        content.pop();
    }
    content
}

/// Converts another provider's response. Its thinking has no signature here and is omitted.
fn foreign(blocks: &[Block]) -> Vec<Value> {
    let block = |block: &Block| match block {
        Block::Text { text: words } if words.trim().is_empty() => None,
        Block::Text { text: words } => Some(text(words)),
        Block::Thinking { .. } => None,
        Block::ToolCall(call) => Some(json!({
            "type": "tool_use",
            "id": tool_input::call_id(&call.call_id),
            "name": tool_input::word(&call.tool),
            "input": tool_input::object(&call.input),
        })),
    };
    blocks.iter().filter_map(block).collect()
}

fn result(result: &ToolResult, request: &ModelRequest) -> Value {
    let output = if result.output.trim().is_empty() { BLANK } else { &result.output };
    let content = match result.content.is_empty() || result.is_error {
        true => Value::from(output),
        false => [vec![text(output)], parts(&result.content, request)].concat().into(),
    };
    let mut block = json!({
        "type": "tool_result",
        "tool_use_id": tool_input::call_id(&result.call_id),
        "content": content,
    });
    if result.is_error {
        block["is_error"] = Value::Bool(true);
    }
    block
}

/// Converts parts; a file is named before it is shown.
/// (platform.claude.com/docs/en/build-with-claude/vision, .../pdf-support)
fn parts(content: &[Content], request: &ModelRequest) -> Vec<Value> {
    let mut blocks = Vec::with_capacity(2 * content.len());
    for part in content {
        if let Content::Text { text: words } = part {
            blocks.push(text(words));
        }
        let Some(file) = part.file() else { continue };
        blocks.push(text(&file.label()));
        blocks.extend(match SentFile::of(part, request) {
            None => None,
            Some(SentFile::Image { media_type, base64 }) => {
                Some(json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": base64}}))
            }
            Some(SentFile::Pdf { base64, .. }) => {
                Some(json!({"type": "document", "source": {"type": "base64", "media_type": PDF, "data": base64}}))
            }
            Some(SentFile::Text { text: words }) => Some(json!({
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": words},
            })),
        });
    }
    blocks
}

fn text(words: &str) -> Value {
    json!({"type": "text", "text": if words.trim().is_empty() { BLANK } else { words }})
}

fn is_thinking(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

/// Returns the thinking parameter: a budget if the model accepts one, else adaptive, summarized
/// thinking.
///
/// Omitted if the provider would reject it: no tokens left below `max_tokens`, or a tool loop that another
/// provider (or no thinking) started.
fn thinking(request: &ModelRequest, turns: &[Turn]) -> Option<Value> {
    let budget = request.options.thinking?.budget_tokens;
    if takes_no_budget(&request.model) {
        return Some(json!({"type": "adaptive", "display": "summarized"}));
    }
    let budget = budget.min(request.max_tokens.saturating_sub(1));
    let fits = budget >= limit::MODEL_THINKING_TOKENS_MIN && loop_began_with_thinking(turns);
    fits.then(|| json!({"type": "enabled", "budget_tokens": budget}))
}

/// Returns whether the response whose results are now sent, if there is one, started with thinking;
/// only then may a budget be set.
fn loop_began_with_thinking(turns: &[Turn]) -> bool {
    let [.., answer, results] = turns else {
        return true;
    };
    let is_open = results.content.first().is_some_and(|block| block["type"] == "tool_result");
    !is_open || answer.content.first().is_some_and(is_thinking)
}

/// Budgets were removed with Claude 4.7. All models that need one have an older version in their
/// names, so a name without a version accepts none either.
fn takes_no_budget(model: &str) -> bool {
    is_since(model, (4, 7))
}

/// Strict tools came with Claude 4.5.
fn takes_strict_tools(model: &str) -> bool {
    is_since(model, (4, 5))
}

/// Returns whether a model has this version or a newer one, or none in its name.
fn is_since(model: &str, since: (u32, u32)) -> bool {
    let numbers = model.split(['-', '.', '@', ':', '/']).filter_map(|part| part.parse::<u32>().ok());
    // A date is not a version: claude-sonnet-4-20250514 is 4.0.
    let mut version = numbers.filter(|&number| number < 100);
    let version = version.next().map(|major| (major, version.next().unwrap_or(0)));
    version.is_none_or(|version| version >= since)
}

#[cfg(test)]
mod tests;
