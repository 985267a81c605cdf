//! `ask`: a question to the caller. It ends the turn and needs no sandbox.
//!
//! Called by the catalog for its spec. The harness itself appends the question as an event; the
//! answer is the caller's next message.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};
use crate::{
    base::limit,
    domain::tool::{ASK, Replay, ToolSpec},
};

/// Checked by the schema; the harness reads them from the call.
#[derive(Debug, Deserialize)]
struct Args {}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: ASK.to_owned(),
        description:
            "Asks the caller a question and ends the turn until there is an answer. Use it only if you \
            cannot continue without one: a decision that is not yours, or a fact that only the caller knows."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "minLength": 1, "description": "The complete question."},
                "options": {
                    "type": "array", "items": {"type": "string", "minLength": 1},
                    "maxItems": limit::ASK_OPTIONS_MAX,
                    "description": "Suggested answers, if there are a few likely ones.",
                },
            },
            "required": ["question"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    /// The answer itself is the caller's next message.
    async fn run_outside(
        &self,
        _call_id: &str,
        _services: &dyn Services,
    ) -> Option<Result<CallResult, Fault>> {
        Some(Ok(CallResult::ok("The question was put to the caller. The answer comes as the next message.")))
    }
}
