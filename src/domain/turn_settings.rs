//! How the turns of an agent behave, beside its model, tools and permissions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{compaction::CompactionSettings, fallback::FallbackModel, mcp::McpServer, skill::SkillChoice};
use crate::base::limit::{ACTION_EXPIRES_SECONDS, LOOP_REPEATS, OUTPUT_REPAIRS};

/// Settings of turns. An absent field is the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TurnSettings {
    /// How the agent asks its caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<AskSettings>,
    /// Consequence of making the same calls again and again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doom_loop: Option<LoopSettings>,
    /// JSON Schema of the output of each turn; an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Map<String, Value>>,
    /// Rejected outputs of a turn before it ends as `output_invalid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_repairs: Option<u32>,
    /// Shortening of a history that is almost too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionSettings>,
    /// Servers whose tools the agent may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<Vec<McpServer>>,
    /// Models that are called, in this order, while the model is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_models: Option<Vec<FallbackModel>>,
    /// Skills that the agent may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skills: Option<Vec<SkillChoice>>,
}

/// Number of repetitions that are a loop, and their consequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = DoomLoopSettings)]
pub struct LoopSettings {
    /// Times that a call, or a sequence of 2 to 4 calls, is made before it is a loop: 2 to 10, default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 2, maximum = 10)]
    pub repeats: Option<u32>,
    pub policy: LoopPolicy,
}

/// Consequence of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoopPolicy {
    /// A person must confirm the call that completes it. A second loop of the turn ends it.
    #[default]
    Ask,
    /// The turn ends with the error `doom_loop`.
    Stop,
    /// Nothing.
    Off,
}

impl LoopSettings {
    /// Returns how often calls are made before they are a loop.
    pub fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(LOOP_REPEATS.1)
    }
}

/// How an agent asks its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AskSettings {
    pub mode: AskMode,
    /// With `wait`: time in which a caller must answer, in seconds: 10 to 2,592,000, default 86,400.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 10, maximum = 2_592_000)]
    pub expires_seconds: Option<u64>,
}

/// Effect of a question on the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskMode {
    /// It ends the turn; the answer is the next message.
    #[default]
    EndTurn,
    /// The turn waits for `user.answer`.
    Wait,
}

/// Changes of settings; absent ones are unchanged, and null restores a default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SettingsChange {
    pub ask: Option<Option<AskSettings>>,
    pub doom_loop: Option<Option<LoopSettings>>,
    pub output_schema: Option<Option<Map<String, Value>>>,
    pub output_repairs: Option<Option<u32>>,
    pub compaction: Option<Option<CompactionSettings>>,
    pub mcp_servers: Option<Option<Vec<McpServer>>>,
    pub fallback_models: Option<Option<Vec<FallbackModel>>>,
    pub skills: Option<Option<Vec<SkillChoice>>>,
}

impl SettingsChange {
    /// Returns whether it changes nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `settings` with the change; null takes the setting of `default`.
    pub fn applied_to(&self, settings: TurnSettings, default: &TurnSettings) -> TurnSettings {
        TurnSettings {
            ask: self.ask.map_or(settings.ask, |ask| ask.or(default.ask)),
            doom_loop: self.doom_loop.map_or(settings.doom_loop, |loops| loops.or(default.doom_loop)),
            output_schema: match &self.output_schema {
                None => settings.output_schema,
                Some(schema) => schema.clone().or_else(|| default.output_schema.clone()),
            },
            output_repairs: self
                .output_repairs
                .map_or(settings.output_repairs, |repairs| repairs.or(default.output_repairs)),
            compaction: match &self.compaction {
                None => settings.compaction,
                Some(compaction) => compaction.clone().or_else(|| default.compaction.clone()),
            },
            mcp_servers: match &self.mcp_servers {
                None => settings.mcp_servers,
                Some(servers) => servers.clone().or_else(|| default.mcp_servers.clone()),
            },
            fallback_models: match &self.fallback_models {
                None => settings.fallback_models,
                Some(models) => models.clone().or_else(|| default.fallback_models.clone()),
            },
            skills: match &self.skills {
                None => settings.skills,
                Some(skills) => skills.clone().or_else(|| default.skills.clone()),
            },
        }
    }
}

impl TurnSettings {
    /// Returns whether all are the defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these settings, overridden by those that `over` sets.
    pub fn overridden_by(&self, over: &Self) -> Self {
        let output_schema = over.output_schema.as_ref().or(self.output_schema.as_ref());
        Self {
            ask: over.ask.or(self.ask),
            doom_loop: over.doom_loop.or(self.doom_loop),
            output_schema: output_schema.cloned(),
            output_repairs: over.output_repairs.or(self.output_repairs),
            compaction: over.compaction.as_ref().or(self.compaction.as_ref()).cloned(),
            mcp_servers: over.mcp_servers.as_ref().or(self.mcp_servers.as_ref()).cloned(),
            fallback_models: over.fallback_models.as_ref().or(self.fallback_models.as_ref()).cloned(),
            skills: over.skills.as_ref().or(self.skills.as_ref()).cloned(),
        }
    }

    /// Returns the rejected outputs of a turn before it ends.
    pub fn output_repairs(&self) -> u32 {
        self.output_repairs.unwrap_or(OUTPUT_REPAIRS.0)
    }
}

impl AskSettings {
    /// Returns the time in which a caller must answer.
    pub fn expires_seconds(&self) -> u64 {
        self.expires_seconds.unwrap_or(ACTION_EXPIRES_SECONDS.1)
    }
}
