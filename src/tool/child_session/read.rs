//! `session_read`: the messages of a session below.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};
use crate::domain::{
    Status,
    tool::{Replay, ToolSpec},
};

#[derive(Debug, Deserialize)]
struct Args {
    id: String,
    after: Option<i64>,
}

/// SessionEvents of a session below, as the result of `session_read` has them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionEvents {
    pub status: Status,
    pub events: Vec<SessionEvent>,
    /// `after` of the next call.
    pub next_after: i64,
    pub has_more: bool,
}

/// An event of a session below.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionEvent {
    pub seq: i64,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "session_read".to_owned(),
        description:
            "Reads the messages of a session that this session or one below it has started, oldest first: \
            those of its agent, those sent to it, its questions, and how its turns ended."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Id of the session."},
                "after": {
                    "type": "integer", "minimum": 0,
                    "description": "Only events after this `seq`: `next_after` of an earlier result. Default: all.",
                },
            },
            "required": ["id"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run_outside(
        &self,
        _call_id: &str,
        services: &dyn Services,
    ) -> Option<Result<CallResult, Fault>> {
        let read = services.read_session(&self.id, self.after.unwrap_or_default()).await;
        Some(read.map(|events| CallResult::json(&events)))
    }
}
