//! Tools that callers say a session has: its log remembers them, the service runs none.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A tool as its caller describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Unique in the session: the same name again replaces it.
    pub name: String,
    /// The caller's own word, as in `custom`.
    pub tool_type: String,
    pub description: String,
    /// JSON Schema of its input; never read here.
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    pub input_schema: Map<String, Value>,
}
