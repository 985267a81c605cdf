//! Request and response bodies of actions, and the events that callers send.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    content::ContentInput,
    message::{SessionRef, SteerMode},
};
use crate::{
    base::json,
    base::limit::{
        ACTION_CLAIM_SECONDS, CONFIRMATION_MESSAGE_BYTES_MAX, ELICITATION_QUESTIONS_MAX, EVENTS_SENT_MAX,
        MESSAGE_CONTENT_MAX, RESULT_CONTENT_MAX, TEXT_BYTES_MAX, TOOL_OUTPUT_BYTES_MAX,
    },
    domain::{
        ActionId, ClaimId, EventId, SessionId,
        action::{Action, Decision, Others, Then},
        permission::Rule,
        question::Answer,
    },
};

/// An open action of a session: what its turn needs from a caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PendingAction {
    /// `input` is null if the arguments are too large: `GET /v3/sessions/{session_id}/events/{call_event_id}/content` has
    /// them.
    #[serde(flatten)]
    pub action: Action,
    pub session_id: SessionId,
    /// Until then only the owner of a claim may answer.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub claimed_until: Option<OffsetDateTime>,
}

/// Events for a session, in order. All are appended, or none.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendEvents {
    #[garde(length(min = 1, max = EVENTS_SENT_MAX), dive)]
    pub events: Vec<SentEvent>,
}

/// An event that a caller sends.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(tag = "type", deny_unknown_fields)]
pub(crate) enum SentEvent {
    /// A message.
    #[serde(rename = "user.message")]
    Message {
        #[garde(inner(length(bytes, min = 1, max = TEXT_BYTES_MAX)))]
        #[serde(default)]
        text: Option<String>,
        /// Parts of the message behind `text`: texts, images and documents.
        #[garde(length(max = MESSAGE_CONTENT_MAX), dive)]
        #[serde(default, deserialize_with = "json::objects")]
        content: Vec<ContentInput>,
        /// Handling of a running turn, as for `POST /v3/sessions/:id/messages`.
        #[garde(skip)]
        #[serde(default)]
        mode: Option<SteerMode>,
        /// JSON Schema of the output of the turn, as for `POST /v3/sessions/:id/messages`.
        #[garde(skip)]
        #[serde(default)]
        output_schema: Option<Map<String, Value>>,
    },
    /// Ends the running turn. Without one, nothing is appended.
    #[serde(rename = "user.interrupt")]
    Interrupt {},
    /// The result of a call of a custom tool.
    #[serde(rename = "user.custom_tool_result")]
    CustomToolResult {
        #[garde(skip)]
        action_id: ActionId,
        /// At most 30,000 bytes as JSON, without the bytes of files; put more into a file and name it.
        #[garde(length(min = 1, max = RESULT_CONTENT_MAX), dive)]
        #[serde(deserialize_with = "json::objects")]
        content: Vec<ContentInput>,
        /// Whether the call failed; the model sees this.
        #[garde(skip)]
        #[serde(default)]
        is_error: bool,
        /// The caller's claim of the action, if it has one.
        #[garde(skip)]
        #[serde(default)]
        claim: Option<ClaimId>,
    },
    /// Answers to the agent's questions.
    #[serde(rename = "user.answer")]
    Answer {
        #[garde(skip)]
        action_id: ActionId,
        /// One for each question of the action, in order; none with `declined`. At most 30,000 bytes as JSON.
        #[garde(length(max = ELICITATION_QUESTIONS_MAX), custom(validate_size))]
        #[serde(default, deserialize_with = "json::objects")]
        answers: Vec<Answer>,
        /// Whether nobody answers: the MCP server that asks is told so. Only for an action with `server`.
        #[garde(skip)]
        #[serde(default)]
        declined: bool,
        /// The caller's claim of the action, if it has one.
        #[garde(skip)]
        #[serde(default)]
        claim: Option<ClaimId>,
    },
    /// A person's decision on a call.
    #[serde(rename = "user.tool_confirmation")]
    ToolConfirmation {
        #[garde(skip)]
        action_id: ActionId,
        #[garde(skip)]
        decision: Decision,
        /// The action's `args_hash`: the decision is refused if the action has another one.
        #[garde(skip)]
        #[serde(default)]
        args_hash: Option<String>,
        /// For `always`: the rule to grant, one of the action's `always`, or narrower.
        #[garde(skip)]
        #[serde(default, deserialize_with = "json::object_or_null")]
        rule: Option<Rule>,
        /// For `reject`: what the model reads. At most 8 KiB as JSON.
        #[garde(inner(custom(validate_message)))]
        #[serde(default)]
        message: Option<String>,
        /// For `reject`: what happens to the turn's other open confirmations.
        #[garde(skip)]
        #[serde(default)]
        others: Others,
        /// For `reject`: what happens to the turn.
        #[garde(skip)]
        #[serde(default)]
        then: Then,
        /// The caller's claim of the action, if it has one.
        #[garde(skip)]
        #[serde(default)]
        claim: Option<ClaimId>,
    },
}

/// Checks the size as JSON, so that the log never truncates it: what is compared and what ends a turn read it from
/// there.
pub(crate) fn validate_size<T: Serialize + ?Sized>(content: &T, _context: &()) -> garde::Result {
    let bytes = serde_json::to_vec(content).map_err(|error| garde::Error::new(error.to_string()))?.len();
    if bytes <= TOOL_OUTPUT_BYTES_MAX {
        return Ok(());
    }
    Err(garde::Error::new(format!(
        "has {bytes} bytes as JSON; at most {TOOL_OUTPUT_BYTES_MAX} are accepted: put the rest where the agent can \
         read it, such as a file"
    )))
}

fn validate_message(message: &str, _context: &()) -> garde::Result {
    match serde_json::to_vec(message).map_or(0, |json| json.len()) {
        ..=CONFIRMATION_MESSAGE_BYTES_MAX => Ok(()),
        bytes => Err(garde::Error::new(format!(
            "has {bytes} bytes as JSON; at most {CONFIRMATION_MESSAGE_BYTES_MAX} are accepted"
        ))),
    }
}

/// The appended events, and the session after them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SentEvents {
    /// One for each event sent, in order.
    pub data: Vec<SentEventRef>,
    pub session: SessionRef,
}

/// An appended event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SentEventRef {
    /// Null for an interrupt of a session that runs nothing.
    #[schema(required)]
    pub id: Option<EventId>,
    #[schema(required)]
    pub seq: Option<i64>,
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// Claim of an action.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClaimAction {
    /// Time for which only this caller may answer, in seconds (default 60).
    #[garde(inner(range(min = 1, max = ACTION_CLAIM_SECONDS.1)))]
    #[schema(minimum = 1, maximum = 600)]
    pub seconds: Option<u64>,
}

/// A claimed action. Send the claim with the answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedAction {
    pub claim: ClaimId,
    #[serde(with = "time::serde::rfc3339")]
    pub claimed_until: OffsetDateTime,
}
