//! Tools, tool calls and tool results, for the model and the log.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::content::Content;
use crate::base::{limit::TOOL_SUMMARY_BYTES_MAX, text};

/// The only key of a tool input that was not a JSON object; holds the model's text.
///
/// Providers accept a call in a history only with an object, so the text is wrapped. The catalog
/// detects the key and reports the error to the model.
pub const MALFORMED_INPUT: &str = "_malformed";

/// Permitted handling of a call whose outcome was lost in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Changes nothing; can be run again.
    ReadOnly,
    /// Running it again has the same effect; run it again with the same id.
    Idempotent,
    /// At most once; query the sandbox for the outcome, never run it again.
    Unsafe,
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// `[a-z_]`, at most 64 characters: accepted by both providers.
    pub name: String,
    /// Description for the model: purpose and when to use the tool.
    pub description: String,
    /// JSON Schema (2020-12) of the arguments; an object.
    pub input_schema: Value,
    /// Handling of a call that a crash interrupted.
    pub replay: Replay,
}

/// A call that a model requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// The provider's id of the call; unique within a session.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// Arguments as the model wrote them.
    #[schema(value_type = Object)]
    pub input: Value,
}

impl ToolCall {
    /// Returns a one-line summary of the call for a timeline; the most telling argument.
    pub fn summary(&self) -> String {
        const SUMMARY_FIELDS: [&str; 4] = ["command", "path", "pattern", "question"];
        let first = self.input.pointer("/questions/0/question").and_then(Value::as_str);
        let telling =
            SUMMARY_FIELDS.iter().find_map(|name| self.input.get(name).and_then(Value::as_str)).or(first);
        let words = telling.map_or_else(|| self.input.to_string(), str::to_owned);
        let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
        text::truncate(&line, TOOL_SUMMARY_BYTES_MAX).to_owned()
    }
}

/// The result of a tool call, for the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: String,
    /// Text for the model, already truncated.
    pub output: String,
    /// Whether the tool failed; the model sees this and may try something else.
    pub is_error: bool,
    /// Files of the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Content>,
}

/// The tool with which an agent asks its caller a question; it ends the turn.
pub const ASK: &str = "ask";

/// The tool with which an agent submits the output of a turn that has an output schema.
pub const SUBMIT_OUTPUT: &str = "submit_output";

/// The tool with which an agent starts another session.
pub const START_SESSION: &str = "start_session";

/// The tool with which an agent waits for sessions below its own.
pub const SESSION_WAIT: &str = "session_wait";

/// Tools for child sessions; each must be listed explicitly.
pub const CHILD_SESSION_TOOLS: [&str; 5] =
    [START_SESSION, SESSION_WAIT, "session_read", "session_message", "session_cancel"];

/// Every tool of the service, in the order of the catalogue.
pub const BUILTIN_TOOLS: [&str; 15] = [
    "bash",
    "read",
    "write",
    "edit",
    "glob",
    "grep",
    "web_fetch",
    ASK,
    "schedule_wake",
    START_SESSION,
    SESSION_WAIT,
    "session_read",
    "session_message",
    "session_cancel",
    SUBMIT_OUTPUT,
];
