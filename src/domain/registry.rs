//! Tools that callers register with a session: stored in its log, run by the caller.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A tool as its caller describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ToolRegistered)]
pub struct Tool {
    /// Unique in the session; registering the same name again replaces the tool.
    pub name: String,
    /// The caller's own type, such as `custom`.
    pub tool_type: String,
    pub description: String,
    /// JSON Schema of its input; not interpreted by the service.
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    pub input_schema: Map<String, Value>,
}
