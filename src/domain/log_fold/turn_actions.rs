//! Actions of a turn's open calls, folded from their events.

use serde::{Deserialize, Serialize};

use crate::{
    base::Timestamp,
    domain::{
        action::{Action, ActionKind, ConfirmationReason},
        content::Content,
        custom_tool::OnExpiry,
        elicitation::{Elicited, Response},
        event::{Body, Event},
        ids::*,
        open_work::CallEnd,
    },
};

/// Actions of the open calls of a turn, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct TurnActions(Vec<TurnAction>);

/// An action of an open call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TurnAction {
    id: ActionId,
    kind: ActionKind,
    pub call_id: String,
    /// Whether it confirms a call that repeats others.
    is_loop: bool,
    /// Hash of the call that a confirmation is bound to.
    pub args_hash: Option<String>,
    on_expiry: OnExpiry,
    #[serde(with = "time::serde::rfc3339")]
    opened_at: Timestamp,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: Timestamp,
    /// Sealed state of the server that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    continuation: Option<String>,
    pub end: Option<ActionEnd>,
}

/// The end of an action for the call that needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ActionEnd {
    /// A caller's result or answers, and the milliseconds until they came.
    Answered {
        text: String,
        is_error: bool,
        after_ms: u64,
        /// Files of the answer.
        content: Vec<Content>,
    },
    /// A person let it run.
    Confirmed,
    /// A person did not, with words for the model.
    Rejected { words: String },
    /// Nobody answered in time; whether that ends the turn.
    Expired { kind: ActionKind, ends_turn: bool },
    /// The server that asked goes on with this response.
    Elicited(Response),
}

impl TurnActions {
    pub(super) fn open(&mut self, action: &Action, opened_at: Timestamp) {
        self.0.push(TurnAction::of(action, opened_at));
    }

    /// Processes an event that may end an action. Returns whether it confirms a call that repeats others.
    pub(super) fn take_end(&mut self, event: &Event) -> bool {
        let (id, end, response) = match &event.draft.body {
            Body::UserCustomToolResult(answer) => {
                (answer.action_id, Some(CallEnd::result(answer)), Response::Canceled)
            }
            Body::UserToolConfirmation(confirmation) => {
                (confirmation.action_id, Some(CallEnd::decided(confirmation)), Response::Canceled)
            }
            Body::UserAnswer(answers) => {
                (answers.action_id, Some(CallEnd::answers(answers)), Response::of(answers))
            }
            Body::ActionClosed { action_id, reason } => {
                let kind = self.0.iter().find(|one| one.id == *action_id).map(|one| one.kind);
                (*action_id, kind.and_then(|kind| CallEnd::closed(*reason, kind)), Response::Canceled)
            }
            _ => return false,
        };
        let open = |one: &&mut TurnAction| one.id == id && one.end.is_none();
        let Some((action, end)) = self.0.iter_mut().find(open).zip(end) else { return false };
        let confirms_loop = action.is_loop && end == CallEnd::Confirmed;
        action.end = Some(match action.continuation {
            Some(_) => ActionEnd::Elicited(response),
            None => action.ended(end, millis(event.ts - action.opened_at)),
        });
        confirms_loop
    }

    /// The newest action of a call.
    pub(super) fn of(&self, call_id: &str) -> Option<&TurnAction> {
        self.0.iter().rfind(|one| one.call_id == call_id)
    }

    /// Forgets those of a call that has its result.
    pub(super) fn forget(&mut self, call_id: &str) {
        self.0.retain(|one| one.call_id != call_id);
    }

    /// Whether a person had to confirm a call because it repeats others.
    pub(super) fn is_loop(&self, call_id: &str) -> bool {
        self.0.iter().any(|one| one.call_id == call_id && one.is_loop)
    }

    /// The newest elicitation of a call, if it has ended.
    pub(super) fn elicited(&self, call_id: &str) -> Option<Elicited> {
        let action = self.of(call_id)?;
        let Some(ActionEnd::Elicited(response)) = &action.end else { return None };
        let (continuation, response) = (action.continuation.clone()?, response.clone());
        Some(Elicited { round: self.elicitations(call_id), continuation, response })
    }

    /// Number of elicitations of a call.
    pub(super) fn elicitations(&self, call_id: &str) -> u32 {
        let asked = |one: &&TurnAction| one.call_id == call_id && one.continuation.is_some();
        u32::try_from(self.0.iter().filter(asked).count()).unwrap_or(u32::MAX)
    }

    /// The open ones: id, call and expiry.
    pub(super) fn still_open(&self) -> impl Iterator<Item = (ActionId, &str, Timestamp)> {
        let open = self.0.iter().filter(|one| one.end.is_none());
        open.map(|one| (one.id, one.call_id.as_str(), one.expires_at))
    }
}

impl TurnAction {
    fn of(action: &Action, opened_at: Timestamp) -> Self {
        Self {
            id: action.id,
            kind: action.kind,
            call_id: action.call_id.clone(),
            is_loop: action.reason == Some(ConfirmationReason::Loop),
            args_hash: action.args_hash.clone(),
            on_expiry: action.on_expiry,
            opened_at,
            expires_at: action.expires_at,
            continuation: action.continuation.clone(),
            end: None,
        }
    }

    fn ended(&self, end: CallEnd, after_ms: u64) -> ActionEnd {
        match end {
            CallEnd::Answered { text, is_error, content } => {
                ActionEnd::Answered { text, is_error, after_ms, content }
            }
            CallEnd::Confirmed => ActionEnd::Confirmed,
            CallEnd::Rejected(words) => ActionEnd::Rejected { words },
            CallEnd::Expired(kind) => {
                ActionEnd::Expired { kind, ends_turn: self.on_expiry == OnExpiry::EndTurn }
            }
        }
    }
}

pub(super) fn millis(span: time::Duration) -> u64 {
    u64::try_from(span.whole_milliseconds()).unwrap_or_default()
}
