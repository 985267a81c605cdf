//! `session_cancel`: ends the turns of a session below.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};
use crate::domain::tool::{Replay, ToolSpec};

#[derive(Debug, Deserialize)]
struct Args {
    id: String,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "session_cancel".to_owned(),
        description:
            "Cancels the running and the queued turn of a session that this session or one below it has \
            started, and those of all sessions below that one. They stay open: a message continues them."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {"id": {"type": "string", "description": "Id of the session."}},
            "required": ["id"],
            "additionalProperties": false,
        }),
        replay: Replay::Idempotent,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run_outside(&self, call_id: &str, services: &dyn Services) -> Option<Result<CallResult, Fault>> {
        let canceled = services.cancel_session(call_id, &self.id).await;
        Some(canceled.map(CallResult::ok))
    }
}
