//! `start_session`: the agent starts another session. It needs no sandbox.
//!
//! Called by the catalog; calls the port [`super::Sessions`], which starts one session per call: a
//! call that is repeated after a crash finds the first one's.

use serde::Deserialize;
use serde_json::json;

use super::{Done, Sessions, Stop, tell};
use crate::{
    base::limit::{NAME_BYTES_MAX, TEXT_BYTES_MAX},
    domain::tool::{Replay, START_SESSION, ToolSpec},
};

#[derive(Deserialize)]
pub(super) struct Args {
    agent: String,
    input: String,
    title: Option<String>,
}

/// A child session to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Id or name.
    pub agent: &'a str,
    pub input: &'a str,
    pub title: Option<&'a str>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: START_SESSION.to_owned(),
        description:
            "Starts another session, which runs in parallel, and returns its id at once. It sees only \
            the input, nothing else of this session, so include all it needs. Its usage counts against the \
            limits of this session."
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
            },
            "required": ["agent", "input"],
            "additionalProperties": false,
        }),
        replay: Replay::Idempotent,
    }
}

pub(super) async fn run(call_id: &str, args: Args, sessions: &dyn Sessions) -> Result<Done, Stop> {
    let (agent, input, title) = (args.agent.as_str(), args.input.as_str(), args.title.as_deref());
    match sessions.start(call_id, Child { agent, input, title }).await.map_err(Stop::Fault)? {
        Ok(session) => Ok(Done::ok(format!("The session {session} was started."))),
        Err(words) => tell(words),
    }
}
