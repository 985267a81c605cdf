//! Tools of an agent that a caller runs.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::base::limit::ACTION_EXPIRES_SECONDS;

/// A tool of an agent: one of the service by its name, or one that a caller runs.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AgentTool {
    /// Name of a tool of the service.
    Builtin(String),
    Custom(Box<CustomTool>),
}

/// A tool that a caller runs. A call of it opens an action, and its turn waits for the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CustomTool {
    pub r#type: CustomToolType,
    /// `[a-zA-Z0-9_-]`, at most 64 characters; unique among the tools of the agent.
    pub name: String,
    /// Description for the model: what the tool does and when to use it.
    pub description: String,
    /// JSON Schema (2020-12) of the arguments, with `type`: `object`. A call whose arguments do not fit is told to
    /// the model and opens no action.
    pub input_schema: Map<String, Value>,
    /// Time in which a caller must answer a call, in seconds.
    #[serde(default = "default_expires_seconds")]
    #[schema(default = 86_400, minimum = 10, maximum = 2_592_000)]
    pub expires_seconds: u64,
    /// What follows when no caller has answered in that time.
    #[serde(default)]
    pub on_expiry: OnExpiry,
}

/// Type of a tool that is not one of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CustomToolType {
    /// Run by a caller.
    Custom,
}

/// What follows when no caller has answered an action in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// The model is told, and the turn continues.
    #[default]
    Tell,
    /// The turn ends with the yield reason `requires_action`.
    EndTurn,
}

impl OnExpiry {
    /// Returns whether the model is told, the default.
    pub fn is_tell(&self) -> bool {
        *self == Self::Tell
    }
}

/// Default of `expires_seconds`.
pub(super) fn default_expires_seconds() -> u64 {
    ACTION_EXPIRES_SECONDS.1
}

/// Not derived: the error of an untagged `enum` does not name the wrong field.
impl<'de> Deserialize<'de> for AgentTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ToolVisitor;

        impl<'de> Visitor<'de> for ToolVisitor {
            type Value = AgentTool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a tool, or an object with `type`: `custom`")
            }

            fn visit_str<E>(self, name: &str) -> Result<AgentTool, E> {
                Ok(AgentTool::Builtin(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AgentTool, A::Error> {
                CustomTool::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(AgentTool::Custom)
            }
        }

        deserializer.deserialize_any(ToolVisitor)
    }
}

impl AgentTool {
    /// Returns the name that the model calls.
    pub fn name(&self) -> &str {
        match self {
            Self::Builtin(name) => name,
            Self::Custom(tool) => &tool.name,
        }
    }

    /// Returns the tool if a caller runs it.
    pub fn custom(&self) -> Option<&CustomTool> {
        match self {
            Self::Builtin(_) => None,
            Self::Custom(tool) => Some(tool),
        }
    }
}
