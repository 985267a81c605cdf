//! `schedule_wake`: the agent schedules its own wake. It needs no sandbox.
//!
//! Calls the port [`Services`], which keeps one wake for each call: a call that is repeated after
//! a crash finds the first one's.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{CallResult, Fault, Invocation, Services, Tool, parse, tell};
use crate::{
    base::limit,
    domain::{
        scheduled_wake::{SCHEDULED_WAKE, When},
        tool::{Replay, ToolSpec},
    },
};

#[derive(Debug, Deserialize)]
struct Args {
    at: Option<String>,
    after_seconds: Option<u64>,
    note: String,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: SCHEDULED_WAKE.to_owned(),
        description:
            "Wakes you later: at that time this session gets a message with your note and a new turn starts. \
            Use it to wait for something that takes minutes or days, then end your turn. Do not sleep in a \
            command. Set `at` or `after_seconds`."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "A time in RFC 3339, such as 2026-01-31T09:00:00Z."},
                "after_seconds": {
                    "type": "integer", "minimum": 1, "maximum": limit::SCHEDULED_WAKE_AHEAD_MAX.as_secs(),
                    "description": "Seconds from now.",
                },
                "note": {
                    "type": "string", "minLength": 1, "maxLength": limit::SCHEDULED_WAKE_NOTE_CHARS_MAX,
                    "description": "Context for you at that time: why you waited and what to check.",
                },
            },
            "required": ["note"],
            "additionalProperties": false,
        }),
        replay: Replay::Idempotent,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run_outside(&self, call_id: &str, services: &dyn Services) -> Option<Result<CallResult, Fault>> {
        Some(self.schedule(call_id, services).await)
    }
}

impl Args {
    async fn schedule(&self, call_id: &str, services: &dyn Services) -> Result<CallResult, Fault> {
        let when = match (&self.at, self.after_seconds) {
            (Some(at), None) => match OffsetDateTime::parse(at, &Rfc3339) {
                Ok(at) => When::At(at),
                Err(_) => return tell("`at` must be a time in RFC 3339, such as 2026-01-31T09:00:00Z."),
            },
            (None, Some(seconds)) => When::After(Duration::from_secs(seconds)),
            (None, None) | (Some(_), Some(_)) => return tell("Set either `at` or `after_seconds`."),
        };
        let at = services.schedule_wake(call_id, when, &self.note).await?;
        Ok(CallResult::ok(format!("You will be woken at {}.", shown(at))))
    }
}

/// Formats a time for the model.
pub fn shown(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}
