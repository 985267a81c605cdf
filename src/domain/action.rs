//! Actions: what a turn needs from a caller before it can continue.
//!
//! An action is opened by an event of its turn and has exactly one end: a caller's answer, or `action.closed`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{custom_tool::OnExpiry, ids::*};
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
    /// Arguments of the call, which fit the schema of the tool.
    // Dropped when the body is truncated and it is large.
    #[serde(default)]
    #[schema(required = false)]
    pub input: Value,
    /// From this time on an answer is refused.
    #[serde(with = "time::serde::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "OnExpiry::is_tell")]
    pub on_expiry: OnExpiry,
}

/// Kind of an action, and so of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ActionType)]
pub enum ActionKind {
    /// A caller runs the call and sends `user.custom_tool_result`.
    ToolResult,
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
}

/// The result of a call that no caller answered in time, for the model.
pub const EXPIRED: &str = "Nobody answered this call in time. It is unknown whether it took effect: check before you \
                           call the tool again.";

/// A part of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResultContent)]
pub enum Content {
    Text { text: String },
}

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
    /// Returns the text for the model.
    pub fn text(&self) -> String {
        let texts = self.content.iter().map(|Content::Text { text }| text.as_str());
        let text = texts.collect::<Vec<_>>().join("\n");
        if text.is_empty() { "(no output)".to_owned() } else { text }
    }
}

/// Calls of a turn without a result, in order.
#[derive(Clone, Debug, Default)]
pub struct OpenWork(pub Vec<OpenCall>);

/// A call without a result.
#[derive(Clone, Debug)]
pub struct OpenCall {
    pub call_id: String,
    pub tool: String,
    /// Its action, and how that ended: the inner `None` is an expiry.
    pub action: Option<(ActionId, Option<Option<ToolAnswer>>)>,
}

impl OpenWork {
    /// Types of the events that it reads.
    pub const TYPES: [&str; 5] =
        ["tool.call", "tool.result", "action.required", "action.closed", "user.custom_tool_result"];

    /// Processes the next event since the turn's last step, with those fields of its body that a truncation keeps.
    ///
    /// # Errors
    /// The body is not that of an event of this type.
    pub fn take(&mut self, kind: &str, body: &str) -> Result<(), serde_json::Error> {
        match kind {
            "tool.call" => {
                let CallFields { call_id, tool } = serde_json::from_str(body)?;
                self.0.push(OpenCall { call_id, tool, action: None });
            }
            "tool.result" => {
                let done: CallFields = serde_json::from_str(body)?;
                self.0.retain(|call| call.call_id != done.call_id);
            }
            "action.required" => {
                let action: ActionFields = serde_json::from_str(body)?;
                let calls = self.0.iter_mut().filter(|call| call.call_id == action.call_id);
                calls.for_each(|call| call.action = Some((action.id, None)));
            }
            "action.closed" => {
                let closed: ClosedFields = serde_json::from_str(body)?;
                self.end(closed.action_id, None);
            }
            "user.custom_tool_result" => {
                let answer: ToolAnswer = serde_json::from_str(body)?;
                self.end(answer.action_id, Some(answer));
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, id: ActionId, answer: Option<ToolAnswer>) {
        let actions = self.0.iter_mut().filter_map(|call| call.action.as_mut());
        actions.filter(|(action, _)| *action == id).for_each(|(_, end)| *end = Some(answer.clone()));
    }
}

#[derive(Deserialize)]
struct CallFields {
    call_id: String,
    tool: String,
}

#[derive(Deserialize)]
struct ActionFields {
    id: ActionId,
    call_id: String,
}

#[derive(Deserialize)]
struct ClosedFields {
    action_id: ActionId,
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
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Answered => "answered",
            Self::Expired => "closed as expired",
            Self::Withdrawn => "withdrawn with its turn",
        })
    }
}
