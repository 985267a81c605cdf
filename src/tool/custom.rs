//! Tools that callers run: their specs, the rules of their schemas, and the check of a call.
//!
//! Called by `turn` for the calls of a model, and by `http` for the definition.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{names, schema::Schema};
use crate::{
    base::limit,
    domain::{
        custom_tool::{AgentTool, CustomTool},
        tool::{Replay, ToolCall, ToolSpec},
    },
};

/// The only dialect of a schema.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Prefixes and names that the service needs for its own tools.
const RESERVED: [&str; 2] = ["mcp__", "submit_output"];

/// Returns a tool as the model sees it.
pub fn custom_spec(tool: &CustomTool) -> ToolSpec {
    ToolSpec {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input_schema: Value::Object(tool.input_schema.clone()),
        // The caller runs it, at most once as far as the service can tell.
        replay: Replay::Unsafe,
    }
}

/// Checks the arguments of a call; or words for the model.
pub fn check_custom(tool: &CustomTool, call: &ToolCall) -> Result<(), String> {
    Schema::of_caller(&tool.input_schema)?.check_exact(&tool.name, &call.input)
}

/// Why the tools of an agent are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolProblem {
    /// Position in the list.
    pub index: usize,
    /// Field of the tool, if one is named.
    pub field: Option<&'static str>,
    /// Whether it is a schema that cannot be used.
    pub is_schema: bool,
    pub message: String,
}

/// Checks the tools of an agent: known or valid names, each once, and schemas that can be used.
pub fn check_tools(tools: &[AgentTool]) -> Result<(), ToolProblem> {
    let known = names();
    let mut seen = BTreeSet::new();
    let mut custom = 0;
    for (index, tool) in tools.iter().enumerate() {
        let problem = |field, message: String| ToolProblem { index, field, is_schema: false, message };
        if !seen.insert(tool.name()) && tool.custom().is_some() {
            return Err(problem(None, format!("`{}` is listed twice", tool.name())));
        }
        match tool {
            AgentTool::Builtin(name) if !known.contains(name) => {
                let message = format!("there is no tool `{name}`; the tools are {}", known.join(", "));
                return Err(problem(None, message));
            }
            AgentTool::Builtin(_) => {}
            AgentTool::Custom(tool) => {
                custom += 1;
                if custom > limit::CUSTOM_TOOLS_MAX {
                    let message =
                        format!("an agent has at most {} tools that callers run", limit::CUSTOM_TOOLS_MAX);
                    return Err(problem(None, message));
                }
                check_definition(tool, &known).map_err(|(field, message)| problem(Some(field), message))?;
                schema_problem(&tool.input_schema).map_or(Ok(()), |message| {
                    Err(ToolProblem { is_schema: true, ..problem(Some("input_schema"), message) })
                })?;
            }
        }
    }
    Ok(())
}

fn check_definition(tool: &CustomTool, known: &[String]) -> Result<(), (&'static str, String)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !(1..=64).contains(&tool.name.len()) || !tool.name.bytes().all(is_word) {
        return Err(("name", "must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -".to_owned()));
    }
    if known.contains(&tool.name) || RESERVED.iter().any(|word| tool.name.starts_with(word)) {
        return Err(("name", format!("`{}` is a name of the service", tool.name)));
    }
    let bytes_max = limit::CUSTOM_TOOL_DESCRIPTION_BYTES_MAX;
    if tool.description.is_empty() || tool.description.len() > bytes_max {
        return Err(("description", format!("must have 1 to {bytes_max} bytes")));
    }
    let (min, _, max) = limit::ACTION_EXPIRES_SECONDS;
    if !(min..=max).contains(&tool.expires_seconds) {
        return Err(("expires_seconds", format!("must be {min} to {max}")));
    }
    Ok(())
}

/// Returns why a schema cannot be used, if it cannot: it is no JSON Schema of 2020-12, refers to another document or
/// to itself, or is too large.
fn schema_problem(schema: &Map<String, Value>) -> Option<String> {
    let bytes = Value::Object(schema.clone()).to_string().len();
    if bytes > limit::TOOL_SCHEMA_BYTES_MAX {
        return Some(format!(
            "has {bytes} bytes of JSON; at most {} are accepted",
            limit::TOOL_SCHEMA_BYTES_MAX
        ));
    }
    if schema.get("$schema").is_some_and(|dialect| dialect.as_str() != Some(DIALECT)) {
        return Some(format!("`$schema` must be {DIALECT}"));
    }
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        return Some("must have `type`: `object`, because arguments are an object".to_owned());
    }
    let root = Value::Object(schema.clone());
    let mut nodes = 0;
    if let Err(problem) = walk(&root, &root, 0, &mut nodes) {
        return Some(problem);
    }
    if !jsonschema::draft202012::meta::is_valid(&root) {
        let error = jsonschema::draft202012::meta::validate(&root).err().map(|error| error.to_string());
        return Some(format!("is not a JSON Schema of 2020-12: {}", error.unwrap_or_default()));
    }
    Schema::of_caller(schema).err().map(|words| format!("cannot be used: {words}"))
}

/// Follows a schema with its references, which makes it finite and small, or refuses it.
fn walk(root: &Value, at: &Value, depth: usize, nodes: &mut usize) -> Result<(), String> {
    *nodes += 1;
    if depth > limit::TOOL_SCHEMA_DEPTH_MAX {
        return Err(format!("is deeper than {} levels, or refers to itself", limit::TOOL_SCHEMA_DEPTH_MAX));
    }
    if *nodes > limit::TOOL_SCHEMA_NODES_MAX {
        return Err(format!("has more than {} parts with its references", limit::TOOL_SCHEMA_NODES_MAX));
    }
    match at {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value.as_str()) {
                    ("$dynamicRef" | "$dynamicAnchor" | "$anchor" | "$id", Some(_)) => {
                        return Err(format!("`{name}` is not accepted"));
                    }
                    ("$ref", Some(reference)) => {
                        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
                        let Some(target) = target else {
                            return Err(format!(
                                "`$ref` {reference} is not in the schema; others are not followed"
                            ));
                        };
                        walk(root, target, depth + 1, nodes)?;
                    }
                    // Definitions count where they are referred to.
                    ("$defs", _) if depth == 0 => {}
                    _ => walk(root, value, depth + 1, nodes)?,
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| walk(root, item, depth + 1, nodes)),
        _ => Ok(()),
    }
}
