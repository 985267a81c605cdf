//! What a tool is, to the model and to the log.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::base::{limit::TOOL_SUMMARY_BYTES_MAX, text};

/// The one key of an input that was not a JSON object, as the model wrote it.
///
/// A provider takes a call back only with an object, so the text is wrapped;
/// the catalogue recognises it and tells the model what was wrong.
pub const MALFORMED_INPUT: &str = "_malformed";

/// What may be done with a call whose outcome was lost in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Changes nothing: run again freely.
    ReadOnly,
    /// Running it again has the same effect: run again with the same id.
    Idempotent,
    /// At most once: ask the sandbox for the outcome, never run again.
    Unsafe,
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// `[a-z_]`, at most 64 characters: what both providers accept.
    pub name: String,
    /// For the model: what it does, when to use it.
    pub description: String,
    /// JSON Schema (2020-12) of the arguments; an object.
    pub input_schema: Value,
    /// What a crash in the middle means.
    pub replay: Replay,
}

/// A call that a model asked for.
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
    /// The call in one line, for a timeline: what it is about, not all of it.
    pub fn summary(&self) -> String {
        const TELLING: [&str; 4] = ["command", "path", "pattern", "question"];
        let telling = TELLING.iter().find_map(|name| self.input.get(name).and_then(Value::as_str));
        let words = telling.map_or_else(|| self.input.to_string(), str::to_owned);
        let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
        text::truncate(&line, TOOL_SUMMARY_BYTES_MAX).to_owned()
    }
}

/// What came of a call, as the model is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolResult {
    /// The call that this answers.
    pub call_id: String,
    /// Text for the model, already capped.
    pub output: String,
    /// Whether the tool failed; the model is told and may try something else.
    pub is_error: bool,
}

/// The tool by which an agent asks its caller; it ends the turn.
pub const ASK: &str = "ask";

/// The tool by which an agent has another session work for it; only of agents that name it.
pub const START_SESSION: &str = "start_session";
