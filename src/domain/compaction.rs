//! Compaction of a history: settings, and the events that shorten what a model is sent.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::FileId;

/// Shortening of the history of an agent's sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CompactionSettings {
    /// Whether a history that is almost too long is summarized (default true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<bool>,
    /// Share of the context window, without the tokens of a response, above which that happens: 0.1 to 0.95, default 0.8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Whether old tool results are left out first (default true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<bool>,
    /// Content that a summary has to have, beside the usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl CompactionSettings {
    /// Returns whether a history that is almost too long is summarized.
    pub fn is_auto(&self) -> bool {
        self.auto.unwrap_or(true)
    }

    /// Returns whether old tool results are left out.
    pub fn prunes(&self) -> bool {
        self.prune.unwrap_or(true)
    }

    /// Returns the share of the context window above which a history is summarized.
    pub fn threshold(&self) -> f64 {
        self.threshold.unwrap_or(THRESHOLD.1)
    }
}

/// Share of the context window above which a history is summarized: min, default and max.
pub const THRESHOLD: (f64, f64, f64) = (0.1, 0.8, 0.95);

/// Cause of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionTrigger {
    /// The history was almost too long.
    Auto,
    /// The provider refused the history as too long.
    Refused,
    /// A caller wanted it.
    Manual,
}

/// A caller's request for a summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CompactionRequest {
    /// Content that the summary has to have; replaces the instructions of the settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// A summary that takes the place of the beginning of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Compacted {
    pub trigger: CompactionTrigger,
    /// Tokens of the history before, as far as they are known or estimated.
    pub before_tokens: u64,
    /// Estimated tokens of the history after it.
    pub after_tokens: u64,
    /// `seq` of the last event that the summary stands for. The input of the running turn stays.
    pub to_seq: i64,
    pub summary: String,
}

/// A summary that would not have made the history shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactionFailed {
    pub trigger: CompactionTrigger,
    /// Tokens of the history, as far as they are known or estimated.
    pub before_tokens: u64,
    /// Estimated tokens of the history with the summary.
    pub after_tokens: u64,
}

/// Results of tools, files and inputs that are left out of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    pub call_ids: Vec<String>,
    /// Files that the model refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub file_ids: Vec<FileId>,
    /// Of each input of an earlier turn that no part of the history is short enough with: `seq` of the event with which
    /// the turn read it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_seqs: Vec<i64>,
    /// `seq` of the last step whose results are left out, or of the last input.
    pub to_seq: i64,
    /// Estimated tokens that this saves.
    pub tokens: u64,
}
