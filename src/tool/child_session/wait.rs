//! `session_wait`: the turn waits until sessions below have nothing to do, and holds no worker meanwhile.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};
use crate::{
    base::limit::{SESSION_WAIT_IDS_MAX, SESSION_WAIT_SECONDS},
    domain::{
        SessionId, Status,
        question::Question,
        tool::{Replay, SESSION_WAIT, ToolSpec},
        turn::{TurnError, YieldReason},
    },
};

#[derive(Debug, Deserialize)]
struct Args {
    ids: Vec<String>,
    any: Option<bool>,
    timeout_seconds: Option<u64>,
}

/// Sessions to wait for.
#[derive(Clone, Copy, Debug)]
pub struct SessionWait<'a> {
    pub ids: &'a [String],
    /// Whether one of them is enough.
    pub any: bool,
    /// Longest time since the call.
    pub timeout: Duration,
}

/// A session below, as the result of `session_wait` has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionReport {
    pub session_id: SessionId,
    /// `None` if no session below has this id, for example because it was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// How its last turn ended, if it has none now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yield_reason: Option<YieldReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// Its newest message to its user, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Open questions of its turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
}

impl SessionReport {
    /// The report of a session that does not exist.
    pub fn gone(session_id: SessionId) -> Self {
        let message = "There is no such session below this one.".to_owned();
        let error = Some(TurnError { code: "not_found".to_owned(), message });
        let (status, yield_reason, text, questions) = (None, None, None, Vec::new());
        Self { session_id, status, yield_reason, error, text, questions }
    }
}

#[derive(Serialize)]
struct Waited {
    sessions: Vec<SessionReport>,
    timed_out: bool,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    let (seconds_min, seconds_default, seconds_max) = SESSION_WAIT_SECONDS;
    ToolSpec {
        name: SESSION_WAIT.to_owned(),
        description: "Waits until sessions that this session or one below it has started have nothing to do, and \
            returns the status and the newest message of each. Returns earlier when one of them asks a question, which \
            you answer with `session_message`, or when the time is over. Costs nothing while it waits."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "ids": {
                    "type": "array", "minItems": 1, "maxItems": SESSION_WAIT_IDS_MAX,
                    "items": {"type": "string"},
                    "description": "Ids of the sessions.",
                },
                "any": {"type": "boolean", "description": "Whether to wait for one of them only. Default: for all."},
                "timeout_seconds": {
                    "type": "integer", "minimum": seconds_min, "maximum": seconds_max,
                    "description": format!("Longest time to wait. Default: {seconds_default}."),
                },
            },
            "required": ["ids"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run_outside(&self, call_id: &str, services: &dyn Services) -> Option<Result<CallResult, Fault>> {
        let seconds = self.timeout_seconds.unwrap_or(SESSION_WAIT_SECONDS.1);
        let timeout = Duration::from_secs(seconds);
        let wait = SessionWait { ids: &self.ids, any: self.any.unwrap_or_default(), timeout };
        let waited = services.wait_for_sessions(call_id, wait).await;
        Some(waited.map(|(sessions, timed_out)| CallResult::json(&Waited { sessions, timed_out })))
    }
}
