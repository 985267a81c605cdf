//! `session_message`: a message to a session below, or the answer to its question.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};
use crate::{
    base::limit::TEXT_BYTES_MAX,
    domain::{
        decide::InputMode,
        tool::{Replay, ToolSpec},
    },
};

#[derive(Debug, Deserialize)]
struct Args {
    id: String,
    text: String,
    mode: Option<Mode>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Queue,
    Steer,
    Interrupt,
}

/// A message to a session below.
#[derive(Clone, Copy, Debug)]
pub struct SessionMessage<'a> {
    pub id: &'a str,
    pub text: &'a str,
    /// Without one, the message answers a question for which the turn waits.
    pub mode: Option<InputMode>,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "session_message".to_owned(),
        description: "Sends a message to a session that this session or one below it has started. It starts a turn, or \
            waits for the next one; if the turn waits for the answer to one question, the message is the answer."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Id of the session."},
                "text": {"type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX},
                "mode": {
                    "enum": ["queue", "steer", "interrupt"],
                    "description": "While a turn runs: wait for the next one, be read by the running one, or end it first. Default: `queue`.",
                },
            },
            "required": ["id", "text"],
            "additionalProperties": false,
        }),
        replay: Replay::Idempotent,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run_outside(&self, call_id: &str, services: &dyn Services) -> Option<Result<CallResult, Fault>> {
        let mode = self.mode.map(|mode| match mode {
            Mode::Queue => InputMode::Queue,
            Mode::Steer => InputMode::Steer,
            Mode::Interrupt => InputMode::Interrupt,
        });
        let message = SessionMessage { id: &self.id, text: &self.text, mode };
        let sent = services.message_session(call_id, message).await;
        Some(sent.map(CallResult::ok))
    }
}
