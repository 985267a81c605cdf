//! Calls of a turn that have no result yet, read from its events, for a command that may end the turn.

use serde::{Deserialize, de::IgnoredAny};

use super::{
    action::{ActionKind, Closed, Confirmation, Decision, REJECTED_TOO, ToolAnswer},
    content::Content,
    ids::*,
    permission::Policy,
    question::Answers,
};

/// How the action of a call ended, for the result of the call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallEnd {
    /// A caller ran it, or answered its questions.
    Answered {
        text: String,
        is_error: bool,
        /// Files of the answer.
        content: Vec<Content>,
    },
    /// It may run.
    Confirmed,
    /// It may not, with words for the model.
    Rejected(String),
    Expired(ActionKind),
}

/// Calls of a turn without a result, in order.
#[derive(Clone, Debug, Default)]
pub struct OpenWork(pub Vec<OpenCall>);

/// A call without a result.
#[derive(Clone, Debug)]
pub struct OpenCall {
    pub call_id: String,
    pub tool: String,
    /// Whether a rule forbids it.
    pub is_denied: bool,
    /// Whether it started after a confirmation.
    pub is_started: bool,
    /// Its newest action, and how that ended.
    pub action: Option<(ActionId, ActionKind, Option<CallEnd>)>,
    /// Whether a server began it, and asks a person.
    pub is_elicited: bool,
}

impl OpenWork {
    /// Types of the events that it reads.
    pub const TYPES: [&str; 8] = [
        "tool.call",
        "tool.started",
        "tool.result",
        "action.required",
        "action.closed",
        "user.custom_tool_result",
        "user.tool_confirmation",
        "user.answer",
    ];

    /// Processes the next event since the turn's last step, with those fields of its body that a truncation keeps.
    ///
    /// # Errors
    /// The body is not that of an event of this type.
    pub fn take(&mut self, kind: &str, body: &str) -> Result<(), serde_json::Error> {
        match kind {
            "tool.call" => {
                let CallFields { call_id, tool, policy } = serde_json::from_str(body)?;
                let is_denied = policy == Some(Policy::Deny);
                self.0.push(OpenCall {
                    call_id,
                    tool,
                    is_denied,
                    is_started: false,
                    action: None,
                    is_elicited: false,
                });
            }
            "tool.started" => {
                let StartedFields { call_id } = serde_json::from_str(body)?;
                self.0
                    .iter_mut()
                    .filter(|call| call.call_id == call_id)
                    .for_each(|call| call.is_started = true);
            }
            "tool.result" => {
                let done: CallFields = serde_json::from_str(body)?;
                self.0.retain(|call| call.call_id != done.call_id);
            }
            "action.required" => {
                let action: ActionFields = serde_json::from_str(body)?;
                let calls = self.0.iter_mut().filter(|call| call.call_id == action.call_id);
                calls.for_each(|call| {
                    call.action = Some((action.id, action.kind, None));
                    call.is_elicited = action.continuation.is_some();
                });
            }
            "action.closed" => {
                let closed: ClosedFields = serde_json::from_str(body)?;
                self.end(closed.action_id, |kind| CallEnd::closed(closed.reason, kind));
            }
            "user.custom_tool_result" => {
                let answer: ToolAnswer = serde_json::from_str(body)?;
                self.end(answer.action_id, |_| Some(CallEnd::result(&answer)));
            }
            "user.answer" => {
                let answers: Answers = serde_json::from_str(body)?;
                self.end(answers.action_id, |_| Some(CallEnd::answers(&answers)));
            }
            "user.tool_confirmation" => {
                let confirmation: Confirmation = serde_json::from_str(body)?;
                self.end(confirmation.action_id, |_| Some(CallEnd::decided(&confirmation)));
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, id: ActionId, end: impl FnOnce(ActionKind) -> Option<CallEnd>) {
        for call in &mut self.0 {
            if let Some((_, kind, found)) = call.action.as_mut().filter(|(action, ..)| *action == id) {
                // With whatever response, the call goes on at its server.
                let goes_on = |end| if call.is_elicited { CallEnd::Confirmed } else { end };
                *found = end(*kind).map(goes_on);
                return;
            }
        }
    }
}

impl CallEnd {
    /// Returns the end that a caller's result makes.
    pub fn result(answer: &ToolAnswer) -> Self {
        let content = answer.content.iter().filter(|part| part.file().is_some()).cloned().collect();
        Self::Answered { text: answer.text(), is_error: answer.is_error, content }
    }

    /// Returns the end that answers make.
    pub fn answers(answers: &Answers) -> Self {
        Self::Answered { text: answers.text(), is_error: false, content: Vec::new() }
    }

    /// Returns the end that a confirmation makes.
    pub fn decided(confirmation: &Confirmation) -> Self {
        match confirmation.decision {
            Decision::Once | Decision::Always => Self::Confirmed,
            Decision::Reject => Self::Rejected(confirmation.rejection()),
        }
    }

    /// Returns the end that `action.closed` makes; `None` for an action that was withdrawn with its turn.
    pub fn closed(reason: Closed, kind: ActionKind) -> Option<Self> {
        match reason {
            Closed::Expired => Some(Self::Expired(kind)),
            Closed::Allowed => Some(Self::Confirmed),
            Closed::Rejected => Some(Self::Rejected(REJECTED_TOO.to_owned())),
            Closed::Withdrawn => None,
        }
    }
}

#[derive(Deserialize)]
struct CallFields {
    call_id: String,
    tool: String,
    #[serde(default)]
    policy: Option<Policy>,
}

#[derive(Deserialize)]
struct StartedFields {
    call_id: String,
}

#[derive(Deserialize)]
struct ActionFields {
    id: ActionId,
    kind: ActionKind,
    call_id: String,
    #[serde(default)]
    continuation: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ClosedFields {
    action_id: ActionId,
    reason: Closed,
}
