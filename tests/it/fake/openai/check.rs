//! Rules of chat completions for a request's body, with the provider's error texts.

use std::collections::HashSet;

use serde_json::Value;

use super::super::{
    file_parts,
    provider::{Refusal, check_schema, check_strict_schema, is_tool_name, only, refuse},
};

const FIELDS: [&str; 8] = [
    "model",
    "messages",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "reasoning_effort",
];
const CALL_ID_CHARS_MAX: usize = 40;

pub fn body(body: &Value) -> Result<(), Refusal> {
    let Some(fields) = body.as_object() else {
        return refuse("We could not parse the JSON body of your request.");
    };
    if let Some(extra) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        return refuse(format!("Unrecognized request argument supplied: {extra}"));
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return refuse("you must provide a model parameter");
    }
    if body
        .get("max_completion_tokens")
        .is_some_and(|tokens| tokens.as_u64().is_none_or(|tokens| tokens == 0))
    {
        return refuse("Invalid 'max_completion_tokens': integer below minimum value.");
    }
    if body["stream"] != true || body["stream_options"]["include_usage"] != true {
        return refuse("this fake only streams, with usage");
    }
    if let Some(effort) = body.get("reasoning_effort")
        && !["minimal", "low", "medium", "high"].contains(&effort.as_str().unwrap_or_default())
    {
        return refuse(format!("Unsupported value: 'reasoning_effort' does not support {effort}."));
    }
    tools(body)?;
    messages(body)
}

fn tools(body: &Value) -> Result<(), Refusal> {
    let Some(tools) = body.get("tools") else {
        return Ok(());
    };
    let Some(tools) = tools.as_array().filter(|tools| !tools.is_empty()) else {
        return refuse("Invalid 'tools': empty array. Expected an array with minimum length 1.");
    };
    for (at, tool) in tools.iter().enumerate() {
        let path = format!("tools[{at}]");
        only(tool, &path, &["type", "function"])?;
        only(&tool["function"], &path, &["name", "description", "parameters", "strict"])?;
        if tool["type"] != "function" || !is_tool_name(&tool["function"]["name"]) {
            return refuse(format!("Invalid '{path}.function.name': does not match '^[a-zA-Z0-9_-]+$'."));
        }
        check_schema(&tool["function"]["parameters"], &format!("{path}.function.parameters"))?;
        if tool["function"]["strict"] == true {
            check_strict_schema(&tool["function"]["parameters"], &path)?;
        }
    }
    Ok(())
}

fn messages(body: &Value) -> Result<(), Refusal> {
    let Some(messages) = body["messages"].as_array().filter(|messages| !messages.is_empty()) else {
        return refuse("Invalid 'messages': empty array. Expected an array with minimum length 1.");
    };
    let mut open: HashSet<String> = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        let path = format!("messages[{at}]");
        let role = message["role"].as_str().unwrap_or_default();
        if role != "tool" {
            all_answered(&open)?;
        }
        match role {
            "system" | "developer" | "user" => {
                only(message, &path, &["role", "content", "name"])?;
                if let Value::Array(parts) = &message["content"]
                    && role == "user"
                    && !parts.is_empty()
                {
                    parts.iter().try_for_each(|part| file_parts::part(part, &format!("{path}.content")))?;
                } else if message["content"].as_str().is_none_or(str::is_empty) {
                    return refuse(format!(
                        "Invalid value for '{path}.content': expected a string, got null."
                    ));
                }
            }
            "assistant" => open = assistant(message, &path)?,
            "tool" => {
                only(message, &path, &["role", "content", "tool_call_id"])?;
                if !message["content"].is_string() {
                    return refuse(format!("Missing required parameter: '{path}.content'."));
                }
                if !open.remove(message["tool_call_id"].as_str().unwrap_or_default()) {
                    return refuse(
                        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message \
                         with 'tool_calls'.",
                    );
                }
            }
            _ => {
                return refuse(format!(
                    "Invalid value: '{role}'. Supported values are: 'system', 'assistant', ..."
                ));
            }
        }
    }
    all_answered(&open)
}

fn all_answered(open: &HashSet<String>) -> Result<(), Refusal> {
    if open.is_empty() {
        return Ok(());
    }
    refuse(format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
         'tool_call_id'. The following tool_call_ids did not have response messages: {open:?}"
    ))
}

fn assistant(message: &Value, path: &str) -> Result<HashSet<String>, Refusal> {
    only(message, path, &["role", "content", "tool_calls", "refusal", "reasoning_content"])?;
    let mut open = HashSet::new();
    let Some(calls) = message.get("tool_calls") else {
        return match message["content"].as_str() {
            Some(text) if !text.is_empty() => Ok(open),
            _ => refuse(format!("Invalid value for '{path}.content': expected a string, got null.")),
        };
    };
    let Some(calls) = calls.as_array().filter(|calls| !calls.is_empty()) else {
        return refuse(format!("Invalid '{path}.tool_calls': empty array."));
    };
    for call in calls {
        only(call, path, &["id", "type", "function"])?;
        only(&call["function"], path, &["name", "arguments"])?;
        let id = call["id"].as_str().unwrap_or_default();
        if id.is_empty() || id.len() > CALL_ID_CHARS_MAX {
            return refuse(format!("Invalid '{path}.tool_calls.id': string too long or empty: {id}"));
        }
        if !is_tool_name(&call["function"]["name"]) || call["type"] != "function" {
            return refuse(format!("Invalid '{path}.tool_calls.function.name'"));
        }
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        // OpenAI takes any string; several compatible servers parse it.
        if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
            return refuse(format!("{path}: function.arguments is no JSON object: {arguments}"));
        }
        if !open.insert(id.to_owned()) {
            return refuse(format!("Duplicate value for 'tool_call_id' of '{id}' in message[{path}]"));
        }
    }
    Ok(open)
}
