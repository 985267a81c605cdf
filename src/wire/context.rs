//! Request and response bodies of a session's context and registered tools.

use std::collections::BTreeMap;

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    metadata::{small_object, validate_metadata},
    operation::{validate_absolute_path, validate_env},
    present,
};
use crate::{
    base::{
        json,
        limit::{
            ACTION_EXPIRES_SECONDS, CUSTOM_TOOL_DESCRIPTION_BYTES_MAX, LIST_ITEM_BYTES_MAX,
            METADATA_BYTES_MAX,
        },
    },
    domain::{
        context::{Context, ContextChange},
        custom_tool::OnExpiry,
        registry::{Runner, Tool},
    },
};

/// Longest path of a working directory, in bytes.
const WORKING_DIR_BYTES_MAX: usize = 4_096;

/// Changes to a session's context. Only the named keys change; null removes a key.
#[derive(Clone, Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContextInput {
    /// Absolute path; null resets it to `/workspace`.
    #[garde(
        inner(inner(length(bytes, min = 1, max = WORKING_DIR_BYTES_MAX))),
        inner(inner(custom(validate_absolute_path)))
    )]
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub working_dir: Option<Option<String>>,
    /// Environment variables of every command, including the agent's. Not for secrets: values are written
    /// to the log.
    #[garde(skip)]
    #[serde(deserialize_with = "json::object")]
    pub env_vars: BTreeMap<String, Option<String>>,
    /// State of the callers; the service does not interpret it.
    #[garde(custom(validate_metadata))]
    pub custom_state: Map<String, Value>,
}

/// Working directory and environment variables of a session's commands, and the callers' state.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Context)]
pub struct ContextView {
    /// Null means `/workspace`.
    #[schema(required)]
    pub working_dir: Option<String>,
    pub env_vars: BTreeMap<String, String>,
    pub custom_state: Map<String, Value>,
}

/// Tool to register in a session.
#[derive(Clone, Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RegisterTool)]
pub struct ToolInput {
    /// Unique within the session; registering the same name again replaces the tool.
    #[garde(length(bytes, min = 1, max = LIST_ITEM_BYTES_MAX), custom(without_nul))]
    pub name: String,
    /// Type chosen by the caller; `custom` when absent.
    #[garde(inner(length(bytes, min = 1, max = LIST_ITEM_BYTES_MAX)), inner(custom(without_nul)))]
    pub tool_type: Option<String>,
    #[garde(length(bytes, max = CUSTOM_TOOL_DESCRIPTION_BYTES_MAX), custom(without_nul))]
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the tool's input.
    #[garde(custom(validate_metadata))]
    #[serde(default)]
    pub input_schema: Map<String, Value>,
    /// `caller` gives the tool to the agent from its next turn on, as a custom tool. Absent, the tool is only recorded.
    #[garde(skip)]
    pub runs: Option<Runner>,
    /// Time in which a caller must answer a call, in seconds (default 86,400).
    #[garde(inner(range(min = ACTION_EXPIRES_SECONDS.0, max = ACTION_EXPIRES_SECONDS.2)))]
    #[schema(minimum = 10, maximum = 2_592_000)]
    pub expires_seconds: Option<u64>,
    /// What follows when no caller has answered in that time.
    #[garde(skip)]
    #[serde(default)]
    pub on_expiry: OnExpiry,
}

/// A registered tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = RegisteredTool)]
pub(crate) struct ToolView {
    pub name: String,
    pub tool_type: String,
    pub description: String,
    pub input_schema: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<Runner>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
    #[serde(skip_serializing_if = "OnExpiry::is_tell")]
    pub on_expiry: OnExpiry,
}

impl From<ContextInput> for ContextChange {
    fn from(input: ContextInput) -> Self {
        let ContextInput { working_dir, env_vars, custom_state } = input;
        Self { working_dir, env_vars, custom_state }
    }
}

impl From<Context> for ContextView {
    fn from(context: Context) -> Self {
        let Context { working_dir, env_vars, custom_state } = context;
        Self { working_dir, env_vars, custom_state }
    }
}

impl From<ToolInput> for Tool {
    fn from(input: ToolInput) -> Self {
        let ToolInput { name, tool_type, description, input_schema, runs, expires_seconds, on_expiry } =
            input;
        let tool_type = tool_type.unwrap_or_else(|| "custom".to_owned());
        Self { name, tool_type, description, input_schema, runs, expires_seconds, on_expiry }
    }
}

impl From<Tool> for ToolInput {
    /// Returns the request that registers the tool.
    fn from(tool: Tool) -> Self {
        let Tool { name, tool_type, description, input_schema, runs, expires_seconds, on_expiry } = tool;
        let tool_type = Some(tool_type);
        Self { name, tool_type, description, input_schema, runs, expires_seconds, on_expiry }
    }
}

impl From<Tool> for ToolView {
    fn from(tool: Tool) -> Self {
        let Tool { name, tool_type, description, input_schema, runs, expires_seconds, on_expiry } = tool;
        Self { name, tool_type, description, input_schema, runs, expires_seconds, on_expiry }
    }
}

/// Returns the invalid field of a changed context and the message, if any.
pub(crate) fn context_problem(context: &Context) -> Option<(&'static str, String)> {
    if let Some(path) = &context.working_dir
        && (validate_absolute_path(path, &()).is_err() || path.len() > WORKING_DIR_BYTES_MAX)
    {
        return Some(("working_dir", "must be an absolute path".to_owned()));
    }
    if let Err(error) = validate_env(&context.env_vars, &()) {
        return Some(("env_vars", error.to_string()));
    }
    let bytes: usize = context.env_vars.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Some(("env_vars", format!("has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed")));
    }
    let state = small_object(&context.custom_state, &());
    state.err().map(|error| ("custom_state", error.to_string()))
}

fn without_nul(text: &str, _context: &()) -> garde::Result {
    match text.contains('\0') {
        true => Err(garde::Error::new("contains U+0000")),
        false => Ok(()),
    }
}
