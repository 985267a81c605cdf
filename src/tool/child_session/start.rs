//! `start_session`: the agent starts another session, one for each call.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};
use crate::{
    base::limit::{NAME_BYTES_MAX, TEXT_BYTES_MAX},
    domain::tool::{Replay, START_SESSION, ToolSpec},
};

#[derive(Debug, Deserialize)]
struct Args {
    agent: String,
    input: String,
    title: Option<String>,
    inherit: Option<bool>,
}

/// A child session to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Id or name.
    pub agent: &'a str,
    pub input: &'a str,
    pub title: Option<&'a str>,
    /// Whether it gets the repositories and skills of its parent.
    pub inherits: bool,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: START_SESSION.to_owned(),
        description:
            "Starts another session, which runs in parallel, and returns its id at once. It sees only \
            the input, nothing else of this session, so include all it needs. It has a sandbox of its own \
            with the environment, the repositories and the skills of this session, and none of its other \
            files. Its usage counts against the limits of this session."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "agent": {
                    "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
                    "description": "Name or id of the agent of the new session.",
                },
                "input": {
                    "type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX,
                    "description": "The task of the new session.",
                },
                "title": {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "description": "For people."},
                "inherit": {"type": "boolean", "default": true, "description": "Whether it has the repositories and skills."},
            },
            "required": ["agent", "input"],
            "additionalProperties": false,
        }),
        replay: Replay::Idempotent,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run_outside(&self, call_id: &str, services: &dyn Services) -> Option<Result<CallResult, Fault>> {
        let child = Child {
            agent: &self.agent,
            input: &self.input,
            title: self.title.as_deref(),
            inherits: self.inherit.unwrap_or(true),
        };
        let started = services.start_session(call_id, child).await;
        Some(started.map(|session| CallResult::ok(format!("The session {session} was started."))))
    }
}
