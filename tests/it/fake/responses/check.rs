//! Rules of the Responses API for a request's body, with the provider's error texts.

use std::collections::HashSet;

use serde_json::Value;

use super::super::{
    anthropic, file_parts,
    provider::{Refusal, check_schema, check_strict_schema, is_tool_name, only, refuse},
};

const FIELDS: [&str; 9] = [
    "model",
    "max_output_tokens",
    "stream",
    "store",
    "reasoning",
    "include",
    "tools",
    "instructions",
    "input",
];

pub fn body(body: &Value) -> Result<(), Refusal> {
    let Some(fields) = body.as_object() else {
        return refuse("We could not parse the JSON body of your request.");
    };
    if let Some(extra) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        return refuse(format!("Unknown parameter: '{extra}'."));
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return refuse("Missing required parameter: 'model'.");
    }
    if body["max_output_tokens"].as_u64().is_none_or(|tokens| tokens < 16) {
        return refuse("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16.");
    }
    if body["stream"] != true || body["store"] != false {
        return refuse("this fake only streams, and stores nothing");
    }
    if let Some(reasoning) = body.get("reasoning") {
        only(reasoning, "reasoning", &["effort", "summary"])?;
        let effort = reasoning.get("effort").and_then(Value::as_str);
        if effort.is_some_and(|effort| !["minimal", "low", "medium", "high"].contains(&effort)) {
            return refuse("Unsupported value: 'reasoning.effort'");
        }
    }
    tools(body)?;
    input(body)
}

fn tools(body: &Value) -> Result<(), Refusal> {
    for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
        let path = format!("tools[{at}]");
        only(tool, &path, &["type", "name", "description", "parameters", "strict"])?;
        if tool["type"] != "function" || !is_tool_name(&tool["name"]) || !tool["strict"].is_boolean() {
            return refuse(format!("Invalid '{path}.name': does not match '^[a-zA-Z0-9_-]+$'."));
        }
        check_schema(&tool["parameters"], &format!("{path}.parameters"))?;
        if tool["strict"] == true {
            check_strict_schema(&tool["parameters"], &path)?;
        }
    }
    Ok(())
}

fn input(body: &Value) -> Result<(), Refusal> {
    let Some(items) = body["input"].as_array().filter(|items| !items.is_empty()) else {
        return refuse("Missing required parameter: 'input'.");
    };
    let mut open: HashSet<&str> = HashSet::new();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut after_reasoning = false;
    for (at, item) in items.iter().enumerate() {
        let path = format!("input[{at}]");
        let id = item["id"].as_str().unwrap_or_default();
        let kind = item["type"].as_str().unwrap_or_default();
        if id.ends_with("_r") && kind != "reasoning" && !after_reasoning {
            return refuse(format!(
                "Item '{id}' of type '{kind}' was provided without its required 'reasoning' item."
            ));
        }
        match kind {
            "message" => {
                if !open.is_empty() && item["role"] == "user" {
                    return refuse(format!("No tool output found for function call {open:?}."));
                }
                after_reasoning &= item["role"] == "assistant";
                message(item, &path)?;
            }
            "reasoning" => {
                reasoning(item, items.get(at + 1), &path)?;
                after_reasoning = true;
            }
            "function_call" => {
                only(item, &path, &["type", "id", "call_id", "name", "arguments", "status"])?;
                let call_id = item["call_id"].as_str().unwrap_or_default();
                if call_id.is_empty()
                    || call_id.len() > 64
                    || !seen.insert(call_id)
                    || !is_tool_name(&item["name"])
                {
                    return refuse(format!("Invalid '{path}.call_id' or '{path}.name': {item}"));
                }
                let arguments = item["arguments"].as_str().unwrap_or_default();
                if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                    return refuse(format!("Invalid '{path}.arguments': {arguments}"));
                }
                open.insert(call_id);
            }
            "function_call_output" => {
                only(item, &path, &["type", "call_id", "output"])?;
                if !open.remove(item["call_id"].as_str().unwrap_or_default()) {
                    return refuse("No tool call found for function call output with this call_id.");
                }
                after_reasoning = false;
                match &item["output"] {
                    Value::String(_) => {}
                    Value::Array(parts) if !parts.is_empty() => content(parts, &path)?,
                    _ => return refuse(format!("Missing required parameter: '{path}.output'.")),
                }
            }
            _ => return refuse(format!("Invalid value: '{kind}' of '{path}.type'.")),
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => refuse(format!("No tool output found for function call {open:?}.")),
    }
}

fn message(item: &Value, path: &str) -> Result<(), Refusal> {
    only(item, path, &["type", "id", "role", "content", "status"])?;
    match (&item["role"], &item["content"]) {
        (Value::String(role), Value::Array(parts)) if role == "user" && !parts.is_empty() => {
            content(parts, path)
        }
        (Value::String(role), Value::String(text)) if role == "assistant" && !text.is_empty() => Ok(()),
        (Value::String(role), Value::Array(parts)) if role == "assistant" && item["id"].is_string() => {
            match parts.iter().all(|part| part["type"] == "output_text" || part["type"] == "refusal") {
                true => Ok(()),
                false => refuse(format!("Invalid value of '{path}.content'.")),
            }
        }
        _ => refuse(format!("Invalid '{path}.content': {item}")),
    }
}

fn reasoning(item: &Value, next: Option<&Value>, path: &str) -> Result<(), Refusal> {
    only(item, path, &["type", "id", "summary", "encrypted_content"])?;
    let id = item["id"].as_str().unwrap_or_default();
    let text = item["summary"][0]["text"].as_str().unwrap_or_default();
    if item["encrypted_content"].as_str() != Some(&*anthropic::sign(text)) {
        return refuse(format!(
            "Item with id '{id}' not found. Items are not persisted when `store` is set to false."
        ));
    }
    match next.and_then(|next| next["type"].as_str()) {
        Some("reasoning" | "function_call" | "message")
            if next.is_some_and(|next| next["role"] != "user") =>
        {
            Ok(())
        }
        _ => refuse(format!(
            "Item '{id}' of type 'reasoning' was provided without its required following item."
        )),
    }
}

fn content(parts: &[Value], path: &str) -> Result<(), Refusal> {
    parts.iter().try_for_each(|part| file_parts::input_part(part, path))
}
