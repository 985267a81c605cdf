//! Rules of the Messages API for a request's body, with the provider's error texts.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    super::{
        file_parts,
        provider::{Refusal, check_schema, check_strict_schema, is_tool_name, only, refuse},
    },
    is_genuine,
};

const FIELDS: [&str; 12] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "thinking",
    "output_config",
    "metadata",
    "stop_sequences",
    "service_tier",
];
/// Removed in version 2026-10-21.
const SAMPLING: [&str; 3] = ["temperature", "top_p", "top_k"];
const CACHE_POINTS_MAX: usize = 4;

pub fn body(body: &Value, version: &str) -> Result<(), Refusal> {
    let mut allowed = FIELDS.to_vec();
    if version == "2023-06-01" {
        allowed.extend(SAMPLING);
    }
    let Some(fields) = body.as_object() else {
        return refuse("The request body is not valid JSON");
    };
    if let Some(extra) = fields.keys().find(|field| !allowed.contains(&field.as_str())) {
        return refuse(format!("{extra}: Extra inputs are not permitted"));
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return refuse("model: Field required");
    }
    let Some(max_tokens) = body["max_tokens"].as_u64().filter(|&tokens| tokens > 0) else {
        return refuse("max_tokens: Input should be greater than or equal to 1");
    };
    if body["stream"] != true {
        return refuse("this fake only streams: send stream: true");
    }
    options(body, max_tokens)?;
    tools(body)?;
    system(body)?;
    messages(body)?;
    let points = body.to_string().matches(r#""cache_control":"#).count();
    if points > CACHE_POINTS_MAX {
        return refuse(format!("A maximum of 4 blocks with cache_control may be provided. Found {points}."));
    }
    Ok(())
}

fn options(body: &Value, max_tokens: u64) -> Result<(), Refusal> {
    if let Some(config) = body.get("output_config") {
        only(config, "output_config", &["effort", "format"])?;
        if !["low", "medium", "high"].contains(&config["effort"].as_str().unwrap_or_default()) {
            return refuse("output_config.effort: Input should be 'low', 'medium' or 'high'");
        }
    }
    let Some(thinking) = body.get("thinking") else {
        return Ok(());
    };
    match thinking["type"].as_str() {
        Some("enabled") => {
            only(thinking, "thinking.enabled", &["type", "budget_tokens", "display"])?;
            let budget = thinking["budget_tokens"].as_u64().unwrap_or(0);
            if budget < 1024 {
                return refuse(
                    "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
                );
            }
            if budget >= max_tokens {
                return refuse("`max_tokens` must be greater than `thinking.budget_tokens`.");
            }
            Ok(())
        }
        Some("adaptive") => only(thinking, "thinking.adaptive", &["type", "display"]),
        Some("disabled") => only(thinking, "thinking.disabled", &["type"]),
        _ => refuse("thinking: Input tag does not match any of: 'enabled', 'adaptive', 'disabled'"),
    }
}

fn tools(body: &Value) -> Result<(), Refusal> {
    let Some(tools) = body.get("tools") else {
        return Ok(());
    };
    let mut names = HashSet::new();
    for (at, tool) in tools.as_array().into_iter().flatten().enumerate() {
        let path = format!("tools.{at}");
        only(tool, &path, &["type", "name", "description", "input_schema", "strict", "cache_control"])?;
        if !is_tool_name(&tool["name"]) {
            return refuse(format!("{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"));
        }
        if !names.insert(tool["name"].to_string()) {
            return refuse("tools: Tool names must be unique.");
        }
        check_schema(&tool["input_schema"], &format!("{path}.custom.input_schema"))?;
        if tool["strict"] == true {
            check_strict_schema(&tool["input_schema"], &path)?;
        }
        cache_control(tool, &path)?;
    }
    Ok(())
}

fn system(body: &Value) -> Result<(), Refusal> {
    match body.get("system") {
        None => Ok(()),
        Some(Value::String(text)) if !text.is_empty() => Ok(()),
        Some(Value::Array(blocks)) => {
            blocks.iter().enumerate().try_for_each(|(at, block)| text(block, &format!("system.{at}")))
        }
        Some(_) => refuse("system: text content blocks must be non-empty"),
    }
}

fn messages(body: &Value) -> Result<(), Refusal> {
    let Some(messages) = body["messages"].as_array().filter(|messages| !messages.is_empty()) else {
        return refuse("messages: at least one message is required");
    };
    let thinks = body["thinking"]["type"] == "enabled";
    let mut ids = HashSet::new();
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        only(message, &format!("messages.{at}"), &["role", "content"])?;
        let role = message["role"].as_str().unwrap_or_default();
        let wanted = if at % 2 == 0 { "user" } else { "assistant" };
        if role != wanted {
            return refuse(format!("messages.{at}: roles must alternate, found {role} instead of {wanted}"));
        }
        let content = match &message["content"] {
            Value::String(text) if !text.trim().is_empty() => &[],
            Value::Array(blocks) if !blocks.is_empty() => blocks.as_slice(),
            _ => return refuse(format!("messages.{at}: all messages must have non-empty content")),
        };
        for (index, block) in content.iter().enumerate() {
            check_block(block, role, &format!("messages.{at}.content.{index}"))?;
        }
        if role == "user" {
            results(at, content, &std::mem::take(&mut open))?;
            continue;
        }
        if content.last().is_some_and(is_thinking) {
            return refuse(format!(
                "messages.{at}: The final block in an assistant message cannot be `thinking`."
            ));
        }
        open = content.iter().filter_map(|block| block["id"].as_str()).collect();
        if let Some(twice) = open.iter().find(|id| !ids.insert(**id)) {
            return refuse(format!("messages.{at}: `tool_use` ids must be unique: {twice}"));
        }
        let is_last_loop = at + 2 >= messages.len() && !open.is_empty();
        if thinks && is_last_loop && !content.first().is_some_and(is_thinking) {
            return refuse(format!(
                "messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`. When `thinking` is \
                 enabled, a final `assistant` message must start with a thinking block"
            ));
        }
    }
    match open.as_slice() {
        [] => Ok(()),
        _ => refuse(format!(
            "messages.{}: `tool_use` ids were found without `tool_result` blocks",
            messages.len() - 1
        )),
    }
}

/// Checks the results of every open call: in order, before any other content.
fn results(at: usize, content: &[Value], open: &[&str]) -> Result<(), Refusal> {
    let found: Vec<&str> = content.iter().filter_map(|block| block["tool_use_id"].as_str()).collect();
    if let Some(stray) = found.iter().find(|id| !open.contains(id)) {
        return refuse(format!(
            "messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {stray}"
        ));
    }
    let mut leading = content.iter().take_while(|block| block["type"] == "tool_result");
    let in_order = open.iter().all(|id| leading.next().is_some_and(|block| block["tool_use_id"] == *id));
    if !in_order || found.len() != open.len() {
        return refuse(format!(
            "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {}",
            open.join(", ")
        ));
    }
    Ok(())
}

fn check_block(block: &Value, role: &str, path: &str) -> Result<(), Refusal> {
    cache_control(block, path)?;
    match (block["type"].as_str(), role) {
        (Some("text"), _) => text(block, path),
        (Some("tool_result"), "user") => {
            only(block, path, &["type", "tool_use_id", "content", "is_error", "cache_control"])?;
            match &block["content"] {
                Value::String(text) if !text.is_empty() || block["is_error"] != true => Ok(()),
                Value::Array(parts)
                    if block["is_error"] == true && parts.iter().any(|part| part["type"] != "text") =>
                {
                    refuse(format!("{path}: all content must be type `text` if `is_error` is true"))
                }
                Value::Array(parts) if !parts.is_empty() => parts.iter().try_for_each(|part| {
                    cache_control(part, path)?;
                    match part["type"].as_str() {
                        Some("text") => text(part, path),
                        _ => file_parts::block(part, path),
                    }
                }),
                _ => refuse(format!("{path}.content: content cannot be empty if `is_error` is true")),
            }
        }
        (Some("image" | "document"), "user") => file_parts::block(block, path),
        (Some("tool_use"), "assistant") => {
            only(block, path, &["type", "id", "name", "input", "cache_control", "caller"])?;
            let fits = |id: &str| {
                !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            };
            if !block["id"].as_str().is_some_and(fits) || !is_tool_name(&block["name"]) {
                return refuse(format!("{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"));
            }
            if block["input"].is_object() {
                Ok(())
            } else {
                refuse(format!("{path}.tool_use.input: Input should be a valid dictionary"))
            }
        }
        (Some("thinking" | "redacted_thinking"), "assistant") => {
            only(block, path, &["type", "thinking", "signature", "data"])?;
            if is_genuine(block) {
                Ok(())
            } else {
                refuse(format!("{path}: Invalid `signature` in `thinking` block"))
            }
        }
        (kind, role) => {
            refuse(format!("{path}: Input tag {kind:?} is not allowed in a message of role {role}"))
        }
    }
}

fn text(block: &Value, path: &str) -> Result<(), Refusal> {
    only(block, path, &["type", "text", "cache_control", "citations"])?;
    match block["text"].as_str() {
        None | Some("") => refuse(format!("{path}: text content blocks must be non-empty")),
        Some(text) if text.trim().is_empty() => {
            refuse(format!("{path}: text content blocks must contain non-whitespace text"))
        }
        Some(_) => Ok(()),
    }
}

fn cache_control(block: &Value, path: &str) -> Result<(), Refusal> {
    let Some(mark) = block.get("cache_control") else {
        return Ok(());
    };
    only(mark, &format!("{path}.cache_control"), &["type", "ttl"])?;
    if mark["type"] != "ephemeral" || is_thinking(block) {
        return refuse(format!("{path}.cache_control: Input should be 'ephemeral' and not on thinking"));
    }
    Ok(())
}

pub fn is_thinking(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

/// Whether a response block can be sent back at all.
pub fn is_sendable(block: &Value) -> bool {
    match block["text"].as_str() {
        Some(text) => !text.trim().is_empty(),
        None => !block.is_null(),
    }
}
