//! Actions: what a turn needs from a caller before it can continue.
//!
//! An action is opened by an event of its turn and has exactly one end: a caller's answer, or `action.closed`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    content::{Content, text_of},
    custom_tool::OnExpiry,
    ids::*,
    permission::{Grant, Rule},
    question::{Answers, Question},
};
use crate::base::Timestamp;

/// What a turn needs from a caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Action {
    pub id: ActionId,
    pub kind: ActionKind,
    /// The tool call that needs it.
    pub call_id: String,
    /// The event `tool.call` of that call.
    pub call_event_id: EventId,
    pub tool: String,
    /// Arguments of the call, which fit the schema of the tool. Null if the body of the event is truncated: they are
    /// in the `input` of the complete body of `call_event_id`.
    #[serde(default)]
    #[schema(required = false)]
    pub input: Value,
    /// From this time on an answer is refused.
    #[serde(with = "time::serde::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "OnExpiry::is_tell")]
    pub on_expiry: OnExpiry,
    /// Why a person must confirm the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ConfirmationReason>,
    /// The rule that asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// Hash of tool, schema, arguments and working directory, which a confirmation is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_hash: Option<String>,
    /// Hash of the server and the schema of an MCP tool, which a grant is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_hash: Option<String>,
    /// Rules that `always` may grant; none if no rule can allow the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub always: Vec<Rule>,
    /// The questions of the agent, or of an MCP server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
    /// The MCP server that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Words of the server for the person who answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// State of the server, sealed: for the service only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<String>,
}

/// Why a call needs a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfirmationReason {
    /// A rule asks for it.
    Policy,
    /// The agent has made the same calls before, again and again.
    Loop,
}

/// Kind of an action, and so of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ActionType)]
pub enum ActionKind {
    /// A caller runs the call and sends `user.custom_tool_result`.
    ToolResult,
    /// A person allows or rejects the call with `user.tool_confirmation`.
    Confirmation,
    /// A caller answers the agent's questions with `user.answer`.
    Question,
}

/// Reason why an action ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ActionCloseReason)]
pub enum Closed {
    /// No caller answered in time.
    Expired,
    /// The turn ended first.
    Withdrawn,
    /// A rule that was granted since allows the call.
    Allowed,
    /// Another call of the turn was rejected, and this one with it.
    Rejected,
}

impl ActionKind {
    /// Returns its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToolResult => "tool_result",
            Self::Confirmation => "confirmation",
            Self::Question => "question",
        }
    }

    /// Returns the result of a call whose action expired, for the model, and whether it may have run.
    pub fn expired(self) -> (&'static str, bool) {
        match self {
            Self::ToolResult => (
                "Nobody answered this call in time. It is unknown whether it took effect: check before you call the \
                 tool again.",
                true,
            ),
            Self::Confirmation => ("Nobody confirmed this call in time, so it did not run.", false),
            Self::Question => (
                "Nobody answered in time. Continue with what you know, or end the turn and say what you need.",
                false,
            ),
        }
    }
}

/// The result of a call that was rejected with another one, for the model.
pub const REJECTED_TOO: &str = "This call was rejected together with another one, so it did not run.";

/// A caller's result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = CustomToolResult)]
pub struct ToolAnswer {
    pub action_id: ActionId,
    pub content: Vec<Content>,
    /// Whether the call failed; the model sees this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl ToolAnswer {
    /// Whether both say the same. Files are compared by what they contain.
    fn is_same(&self, other: &Self) -> bool {
        let parts = |answer: &Self| -> Vec<_> {
            let part = |part: &Content| match part {
                Content::Text { text } => (None, text.clone()),
                Content::Image(file) => (Some(true), file.sha256.clone()),
                Content::Document(file) => (Some(false), file.sha256.clone()),
            };
            answer.content.iter().map(part).collect()
        };
        self.is_error == other.is_error && parts(self) == parts(other)
    }

    /// Returns the text for the model.
    pub fn text(&self) -> String {
        let text = text_of(&self.content);
        if text.is_empty() && self.content.iter().all(|part| part.file().is_none()) {
            "(no output)".to_owned()
        } else {
            text
        }
    }
}

/// A person's decision on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ToolConfirmation)]
pub struct Confirmation {
    pub action_id: ActionId,
    pub decision: Decision,
    /// The rule that `always` grants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// For the model: why the call was rejected, and what to do instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Others::is_keep")]
    pub others: Others,
    #[serde(default, skip_serializing_if = "Then::is_continue")]
    pub then: Then,
}

/// A decision on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConfirmationDecision)]
pub enum Decision {
    /// This call runs.
    Once,
    /// It runs, and so do others that `rule` allows, for the rest of the session.
    Always,
    /// It does not run.
    Reject,
}

/// What happens to the turn's other open confirmations when a call is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConfirmationOthers)]
pub enum Others {
    /// They stay open.
    #[default]
    Keep,
    Reject,
}

/// What happens to the turn when a call is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConfirmationThen)]
pub enum Then {
    /// The model is told, and the turn continues.
    #[default]
    Continue,
    /// It ends as `canceled`.
    EndTurn,
}

impl Others {
    pub fn is_keep(&self) -> bool {
        *self == Self::Keep
    }
}

impl Then {
    pub fn is_continue(&self) -> bool {
        *self == Self::Continue
    }
}

impl Confirmation {
    /// Returns the result of a rejected call, for the model.
    pub fn rejection(&self) -> String {
        match &self.message {
            Some(message) => format!("A person rejected this call, so it did not run. They wrote: {message}"),
            None => {
                "A person rejected this call, so it did not run. Do not try it in another way.".to_owned()
            }
        }
    }
}

/// A caller's answer of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionAnswer {
    Result(ToolAnswer),
    Confirmation(Confirmation),
    Answers(Answers),
}

impl ActionAnswer {
    pub fn action_id(&self) -> ActionId {
        match self {
            Self::Result(answer) => answer.action_id,
            Self::Confirmation(confirmation) => confirmation.action_id,
            Self::Answers(answers) => answers.action_id,
        }
    }

    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Result(_) => ActionKind::ToolResult,
            Self::Confirmation(_) => ActionKind::Confirmation,
            Self::Answers(_) => ActionKind::Question,
        }
    }

    /// Returns whether the event of an earlier answer, with this body, is the same one.
    pub fn is_that_of(&self, body: &str) -> bool {
        match self {
            Self::Result(answer) => {
                serde_json::from_str::<ToolAnswer>(body).is_ok_and(|first| first.is_same(answer))
            }
            Self::Confirmation(answer) => {
                serde_json::from_str::<Confirmation>(body).is_ok_and(|first| first == *answer)
            }
            Self::Answers(answers) => {
                serde_json::from_str::<Answers>(body).is_ok_and(|first| first == *answers)
            }
        }
    }
}

/// What else a confirmation changes.
#[derive(Clone, Debug, Default)]
pub struct Consequences {
    /// A rule that it grants.
    pub grant: Option<Grant>,
    /// Other confirmations of the turn that end with it.
    pub closed: Vec<(ActionId, Closed)>,
}

/// State of an action for a command that answers it, read under the lock of its session.
#[derive(Clone, Debug)]
pub struct ActionState {
    pub id: ActionId,
    pub turn: TurnId,
    pub kind: ActionKind,
    /// How and when it ended; `None` while it is open.
    pub ended: Option<(Ended, Timestamp)>,
    /// Whether its time has passed, by the clock of the database.
    pub is_expired: bool,
    /// The claim whose owner alone may answer now.
    pub claim: Option<ClaimId>,
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Answered,
    Expired,
    Withdrawn,
    Allowed,
    Rejected,
}

impl From<Closed> for Ended {
    fn from(reason: Closed) -> Self {
        match reason {
            Closed::Expired => Self::Expired,
            Closed::Withdrawn => Self::Withdrawn,
            Closed::Allowed => Self::Allowed,
            Closed::Rejected => Self::Rejected,
        }
    }
}

impl Ended {
    /// Returns its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Allowed => "allowed",
            Self::Rejected => "rejected",
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Answered => "answered",
            Self::Expired => "closed as expired",
            Self::Withdrawn => "withdrawn with its turn",
            Self::Allowed => "closed, because a granted rule allows the call,",
            Self::Rejected => "rejected with another call",
        })
    }
}
