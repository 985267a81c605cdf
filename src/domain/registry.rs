//! Tools that callers register with a session: stored in its log, run by the caller.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::custom_tool::{CustomTool, CustomToolType, OnExpiry, default_expires_seconds};

/// A tool as its caller describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ToolRegistered)]
pub struct Tool {
    /// Unique in the session; registering the same name again replaces the tool.
    pub name: String,
    /// The caller's own type, such as `custom`.
    pub tool_type: String,
    pub description: String,
    /// JSON Schema of its input; interpreted by the service only if the agent gets the tool.
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    pub input_schema: Map<String, Value>,
    /// Who runs it for the agent. Absent, the agent does not get it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub runs: Option<Runner>,
    /// Time in which a caller must answer a call, in seconds; 86,400 when absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_seconds: Option<u64>,
    /// What follows when no caller has answered in that time.
    #[serde(skip_serializing_if = "OnExpiry::is_tell", default)]
    pub on_expiry: OnExpiry,
}

/// Who runs a registered tool for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ToolRunner)]
pub enum Runner {
    /// A caller, as a custom tool.
    Caller,
}

impl Tool {
    /// Returns the tool as the agent gets it, if it does.
    pub fn custom(&self) -> Option<CustomTool> {
        let Runner::Caller = self.runs?;
        Some(CustomTool {
            r#type: CustomToolType::Custom,
            name: self.name.clone(),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
            expires_seconds: self.expires_seconds.unwrap_or_else(default_expires_seconds),
            on_expiry: self.on_expiry,
        })
    }
}
