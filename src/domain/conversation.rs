//! Requests to and responses from a model, in no provider's dialect.
//!
//! The log stores each response twice. The provider's raw blocks are sent back to the same provider
//! byte for byte, because thinking signatures depend on it. The neutral blocks of this file are
//! understood by every reader.

use std::{collections::HashMap, iter};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::base::json;

use super::{
    content::Content,
    ids::FileId,
    tool::{ToolCall, ToolResult, ToolSpec},
    usage::Usage,
};

/// One part of a model's response, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text for the reader.
    Text { text: String },
    /// Reasoning that the provider shows; empty if it is withheld.
    Thinking { text: String },
    /// A tool call that the model requests.
    ToolCall(ToolCall),
}

/// Reason for which the model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model finished its response.
    EndTurn,
    /// The model waits for the results of its tool calls.
    ToolUse,
    /// The call reached `max_tokens`.
    MaxTokens,
    /// The model declined.
    Refusal,
    /// The provider paused a long response; sending the history again resumes it.
    Pause,
}

/// A complete response of a model. An interrupted stream gives none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Neutral blocks, in order.
    pub blocks: Vec<Block>,
    /// The provider's own blocks, verbatim, for the next request.
    pub raw: Vec<Value>,
    /// Reason for which the model stopped.
    pub stop: StopReason,
    /// Usage of the call; `steps` and `tool_calls` stay zero.
    pub usage: Usage,
}

impl Answer {
    /// Returns the requested tool calls, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            Block::Text { .. } | Block::Thinking { .. } => None,
        })
    }
}

/// One message of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// The caller's message.
    User {
        text: String,
        /// Its parts in order, texts among them, if it has files.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        content: Vec<Content>,
    },
    /// The model's response: `raw` for the same provider, `blocks` for all others.
    Assistant { provider: String, raw: Vec<Value>, blocks: Vec<Block> },
    /// The results of every tool call of the previous response, in its order.
    Results { results: Vec<ToolResult> },
}

impl Message {
    /// Creates a message without files.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into(), content: Vec::new() }
    }

    /// Returns the parts of the message, or of its results, if it has files.
    pub fn content(&self) -> Box<dyn Iterator<Item = &Content> + '_> {
        match self {
            Self::User { content, .. } => Box::new(content.iter()),
            Self::Assistant { .. } => Box::new(iter::empty()),
            Self::Results { results } => Box::new(results.iter().flat_map(|result| &result.content)),
        }
    }

    /// Returns the parts of the message, or of its results, if it has files.
    pub fn content_mut(&mut self) -> Box<dyn Iterator<Item = &mut Content> + '_> {
        match self {
            Self::User { content, .. } => Box::new(content.iter_mut()),
            Self::Assistant { .. } => Box::new(iter::empty()),
            Self::Results { results } => Box::new(results.iter_mut().flat_map(|result| &mut result.content)),
        }
    }
}

/// Begins a message that takes the place of the beginning of a conversation; the `seq` of its last event follows.
pub const SUMMARY: &str = "[Summary of the conversation up to event ";

/// Returns the `seq` up to which a history begins with a summary.
pub fn summarized_to(history: &[Message]) -> Option<&str> {
    match history.first()? {
        Message::User { text, .. } => text.strip_prefix(SUMMARY)?.split(']').next(),
        Message::Assistant { .. } | Message::Results { .. } => None,
    }
}

/// Message of the service to a model that ends a turn without the output that it needs.
pub const NO_OUTPUT: &str = "You have not submitted the output of this task. Call `submit_output` with it.";

/// Complete input of one model call. Equal logs give equal requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Model name without its provider, such as `claude-sonnet-4-5`.
    pub model: String,
    /// System prompt; may be empty.
    pub system: String,
    /// Tools in catalog order; the order is part of the cached prefix.
    pub tools: Vec<ToolSpec>,
    /// Strictly alternating, oldest first: user or results, then assistant, and so on.
    pub history: Vec<Message>,
    /// Max output tokens.
    pub max_tokens: u64,
    /// Options of the agent beyond the prompt.
    pub options: ModelOptions,
    /// Bytes of the files in the history; a file that is missing here is named, and not shown.
    #[serde(skip)]
    pub files: HashMap<FileId, Bytes>,
}

/// Model options of an agent; they apply where the provider supports them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelOptions {
    /// Max output tokens of one call (default 16384).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Context window of the model, in tokens; by default that of known models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// API of an OpenAI-compatible provider: `chat_completions` (default) or `responses`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<ModelApi>,
    /// Thinking effort: `low`, `medium` or `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Visible thinking with its own token budget.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "json::object_or_null")]
    pub thinking: Option<Thinking>,
}

/// API of an OpenAI-compatible provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelApi {
    #[default]
    ChatCompletions,
    Responses,
}

/// Thinking effort that is requested from a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    /// Returns its name, which the APIs of all providers share.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A token budget for thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Thinking {
    /// Thinking tokens: at least 1024 and below `max_tokens` (Anthropic's rule).
    pub budget_tokens: u64,
}
