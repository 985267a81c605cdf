//! Tools that callers run: their specs, the rules of their schemas, and the check of a call.
//!
//! Called by `turn` for the calls of a model, and by `http` for the definition.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tokio::task;

use super::{custom_schema, names, schema::LazySchema};
use crate::{
    base::limit,
    domain::{
        custom_tool::{AgentTool, CustomTool},
        tool::{Replay, SUBMIT_OUTPUT, ToolCall, ToolSpec},
    },
};

/// Begin of names that the service needs for tools of others.
const RESERVED_PREFIX: &str = "mcp__";

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

/// A custom tool of a turn. Its schema is compiled at its first call.
#[derive(Debug)]
pub struct TurnTool {
    pub tool: CustomTool,
    schema: LazySchema,
}

impl TurnTool {
    pub fn new(tool: CustomTool) -> Self {
        Self { schema: LazySchema::new(tool.input_schema.clone()), tool }
    }

    /// Checks the arguments of a call; or words for the model.
    pub fn check(&self, call: &ToolCall) -> Result<(), String> {
        self.schema.check(&self.tool.name, &call.input)
    }
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

/// Checks the tools of an agent: known or valid names, each once, and schemas that can be used. Compiles patterns, so
/// it does not run on a thread of the runtime.
#[expect(clippy::disallowed_methods, reason = "awaited here")]
pub async fn check_tools(tools: Vec<AgentTool>) -> Result<(), ToolProblem> {
    if tools.iter().all(|tool| tool.custom().is_none()) {
        return check_each(&tools);
    }
    let checked = task::spawn_blocking(move || check_each(&tools)).await;
    checked.unwrap_or_else(|error| {
        let message = format!("the tools were not checked: {error}");
        Err(ToolProblem { index: 0, field: None, is_schema: false, message })
    })
}

/// Checks the schemas of the tools of one server, whose patterns share one bound. Returns the problem of each that
/// cannot be used.
#[expect(clippy::disallowed_methods, reason = "awaited here")]
pub async fn check_schemas(schemas: Vec<Map<String, Value>>) -> Vec<Option<String>> {
    let count = schemas.len();
    let check = move || {
        let mut checker = custom_schema::Checker::default();
        schemas.iter().map(|schema| checker.check(schema).err()).collect()
    };
    let checked = task::spawn_blocking(check).await;
    checked.unwrap_or_else(|error| vec![Some(format!("was not checked: {error}")); count])
}

fn check_each(tools: &[AgentTool]) -> Result<(), ToolProblem> {
    let known = names();
    let (mut seen, mut schemas) = (BTreeSet::new(), custom_schema::Checker::default());
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
                schemas.check(&tool.input_schema).map_err(|message| ToolProblem {
                    is_schema: true,
                    ..problem(Some("input_schema"), message)
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
    let is_reserved = tool.name == SUBMIT_OUTPUT || tool.name.starts_with(RESERVED_PREFIX);
    if known.contains(&tool.name) || is_reserved {
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
