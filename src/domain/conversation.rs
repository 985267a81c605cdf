//! What is said to a model and what it answers, in no provider's dialect.
//!
//! The log keeps each answer twice: the provider's raw blocks, which go back to
//! the same provider byte for byte (thinking signatures depend on it), and the
//! neutral blocks of this file, which every reader understands.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::base::json;

use super::{
    tool::{ToolCall, ToolResult, ToolSpec},
    usage::Usage,
};

/// One thing that a model said, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text for the reader.
    Text { text: String },
    /// Reasoning that the provider shows; empty where it is withheld.
    Thinking { text: String },
    /// A tool that the model wants to be run.
    ToolCall(ToolCall),
}

/// Why a model stopped speaking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It had nothing more to say.
    EndTurn,
    /// It waits for the results of its tool calls.
    ToolUse,
    /// The call's `max_tokens` were used up.
    MaxTokens,
    /// The model declined.
    Refusal,
    /// The provider paused a long answer; sending the history again resumes it.
    Pause,
}

/// A whole answer of a model. A cut stream leaves none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What it said, in order.
    pub blocks: Vec<Block>,
    /// The provider's own blocks, verbatim, for the next request.
    pub raw: Vec<Value>,
    /// Why it stopped.
    pub stop: StopReason,
    /// What the call used; `steps` and `tool_calls` are left zero.
    pub usage: Usage,
}

impl Answer {
    /// The calls that it asks for, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            Block::Text { .. } | Block::Thinking { .. } => None,
        })
    }
}

/// One piece of a history, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What the caller said.
    User { text: String },
    /// What the model answered: raw for `provider`, blocks for all others.
    Assistant { provider: String, raw: Vec<Value>, blocks: Vec<Block> },
    /// The results of every call of the answer before, in its order.
    Results { results: Vec<ToolResult> },
}

/// Everything that one model call is made from. Equal logs give equal requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Model name without its provider, as in `claude-sonnet-4-5`.
    pub model: String,
    /// System prompt; may be empty.
    pub system: String,
    /// Tools in catalogue order: the order is part of the cached prefix.
    pub tools: Vec<ToolSpec>,
    /// Strictly alternating: user or results, then assistant, and so on.
    pub history: Vec<Message>,
    /// Output tokens at most.
    pub max_tokens: u64,
    /// What the agent asked of the model beyond the prompt.
    pub options: ModelOptions,
}

/// What an agent may ask of its model, where the provider supports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelOptions {
    /// Output tokens of one call at most (default 16384).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// How hard to think: `low`, `medium` or `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Thinking in the open, with its own budget.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "json::object_or_null")]
    pub thinking: Option<Thinking>,
}

/// How hard a model is asked to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    Low,
    Medium,
    High,
}

/// A budget for thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Thinking {
    /// Tokens at least 1024 and below `max_tokens` (Anthropic's rule).
    pub budget_tokens: u64,
}
