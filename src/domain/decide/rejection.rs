//! Reasons why a command is refused.

use time::format_description::well_known::Rfc3339;

use crate::{
    base::{
        Timestamp,
        limit::{SESSION_DEPTH_MAX, SESSION_DESCENDANTS_MAX},
    },
    domain::{
        SessionId, TurnId,
        action::{ActionKind, Ended},
        session::{Session, Status},
    },
};

/// Reason why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The session is archived.
    #[error("the session is archived and read-only; create a new one")]
    Archived,
    /// The session has no history yet.
    #[error("no model call has been made in this session, so there is nothing to summarize")]
    NothingToCompact,
    /// The session has no agent.
    #[error("the session was created without an agent, so no agent reads its messages")]
    NoAgent,
    /// A limit of the session is used up; its name.
    #[error("the session's limit `{0}` is used up; raise it to continue")]
    BudgetExceeded(&'static str),
    /// A spend cap is used up; its name.
    #[error("the spend cap `{0}` is used up; raise it or wait for the cap's window to pass")]
    CapExceeded(&'static str),
    /// The organization's balance is used up.
    #[error("the organization's balance is used up; top it up to continue")]
    BalanceExhausted,
    /// The session is paused.
    #[error("the session is paused; resume it first")]
    Paused,
    /// The session is stopped.
    #[error("the session is stopped; start it first")]
    Stopped,
    /// The sandbox of a session without an agent could not be replaced.
    #[error("the session failed because its sandbox could not be replaced; start it to try again")]
    Failed,
    /// A limit of an ancestor session is used up; its name, and the ancestor.
    #[error("the limit `{0}` of the ancestor session {1} is used up; raise it to continue")]
    AncestorLimitExceeded(&'static str, SessionId),
    /// The parent session is archived.
    #[error("the parent session is archived, so it cannot have new child sessions")]
    ParentArchived,
    /// The parent session already has the max number of ancestors.
    #[error("sessions can be nested at most {SESSION_DEPTH_MAX} levels deep")]
    TooDeep,
    /// A session tree has the max number of sessions.
    #[error("the root session has {SESSION_DESCENDANTS_MAX} descendants, the maximum; delete finished ones")]
    TooManyDescendants,
    /// The session to delete has open descendants.
    #[error("child sessions of this session are not archived; archive or delete them first")]
    OpenDescendants,
    /// The action has ended: how, and when.
    #[error("this action was {0} at {at}; a message still reaches the agent", at = shown(.1))]
    ActionResolved(Ended, Timestamp),
    /// The time of the action has passed.
    #[error("the time to answer this action has passed; a message still reaches the agent")]
    ActionExpired,
    /// Another caller has claimed the action.
    #[error("another caller has claimed this action; answer with its `claim`, or when the claim has expired")]
    ActionClaimed,
    /// The answer is one of another kind of action.
    #[error("{}", of_kind(.0))]
    AnswerKind(ActionKind),
    /// A turn is running and uses the files or the agent that the command would replace.
    #[error("a turn of the session is running; cancel it or wait until it ends")]
    TurnRunning,
    /// The turn to retry ended without an error.
    #[error("the turn did not end with an error; send a message to continue")]
    TurnNotFailed,
    /// The turn to retry is not the last one; the last one.
    #[error("only the last turn of a session can be retried, which is {0}; send a message to continue")]
    NotLastTurn(TurnId),
}

/// Checks that a session takes requests for its agent.
pub(super) fn takes_input(session: &Session) -> Result<(), Rejection> {
    match session.status {
        Status::Archived => Err(Rejection::Archived),
        _ if session.created.agent_snapshot.is_none() => Err(Rejection::NoAgent),
        _ => Ok(()),
    }
}

fn of_kind(kind: &ActionKind) -> &'static str {
    match kind {
        ActionKind::ToolResult => "this action needs a result; send `user.custom_tool_result`",
        ActionKind::Confirmation => "this action needs a confirmation; send `user.tool_confirmation`",
        ActionKind::Question => "this action needs answers; send `user.answer`",
    }
}

fn shown(at: &Timestamp) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
