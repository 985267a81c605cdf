//! Reasons why a session is not opened or woken, with their stable codes.

use crate::{
    domain::{decide::Rejection, skill::READING_TOOLS},
    journal, store,
};

/// Reason why a session is not opened or woken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("there is no such agent")]
    UnknownAgent,
    /// The model name is unknown or not allowed here.
    #[error("{0}")]
    Model(String),
    #[error(
        "the agent has no key for `{0}` and the organization has no default; create one with POST /v3/credentials"
    )]
    NoCredential(String),
    #[error("there is no such environment")]
    UnknownEnvironment,
    /// A repository cannot be cloned as configured.
    #[error("{0}")]
    Source(String),
    /// The agent names a skill, or a version of one, that does not exist; its index in the list.
    #[error("the agent names a skill, or a version of it, that does not exist")]
    UnknownSkill(usize),
    /// The agent has skills, and no tool with which it can read them.
    #[error("skills are read with a tool: the agent needs {}", READING_TOOLS.join(" or "))]
    UnreadableSkills,
    /// The session to wake does not exist.
    #[error("there is no such session")]
    UnknownSession,
    /// The parent session does not exist.
    #[error("there is no such parent session")]
    UnknownParent,
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

impl Refused {
    /// Returns the stable error code; `None` for a failure of the service.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            Self::UnknownAgent => Some("unknown_agent"),
            Self::Model(_) => Some("model_unknown"),
            Self::NoCredential(_) => Some("no_credential"),
            Self::UnknownEnvironment => Some("unknown_environment"),
            Self::Source(_) => Some("source_refused"),
            Self::UnknownSkill(_) => Some("unknown_skill"),
            Self::UnreadableSkills => Some("unreadable_skills"),
            Self::UnknownSession => Some("unknown_session"),
            Self::Journal(journal::Error::Rejected(Rejection::Archived)) => Some("archived"),
            Self::Journal(journal::Error::Rejected(Rejection::NoAgent)) => Some("no_agent"),
            Self::Journal(journal::Error::Rejected(Rejection::NothingToCompact)) => {
                Some("nothing_to_compact")
            }
            Self::Journal(journal::Error::Rejected(
                Rejection::BudgetExceeded(_)
                | Rejection::AncestorLimitExceeded(..)
                | Rejection::CapExceeded(_),
            )) => Some("budget_exceeded"),
            Self::Journal(journal::Error::Rejected(Rejection::BalanceExhausted)) => Some("payment_required"),
            Self::Journal(journal::Error::Rejected(Rejection::Paused)) => Some("paused"),
            Self::Journal(journal::Error::Rejected(Rejection::Stopped)) => Some("stopped"),
            Self::Journal(journal::Error::Rejected(Rejection::Failed)) => Some("failed"),
            Self::UnknownParent => Some("unknown_parent"),
            Self::Journal(journal::Error::Rejected(Rejection::ParentArchived)) => Some("parent_archived"),
            Self::Journal(journal::Error::Rejected(Rejection::TooDeep)) => Some("too_deep"),
            Self::Journal(journal::Error::Rejected(Rejection::TooManyDescendants)) => {
                Some("too_many_sessions_below")
            }
            Self::Journal(journal::Error::Rejected(Rejection::OpenDescendants)) => {
                Some("open_sessions_below")
            }
            Self::Journal(journal::Error::Rejected(Rejection::TurnRunning)) => Some("turn_running"),
            Self::Journal(journal::Error::Rejected(Rejection::TurnNotFailed)) => Some("turn_not_failed"),
            Self::Journal(journal::Error::Rejected(Rejection::NotLastTurn(_))) => Some("not_last_turn"),
            Self::Journal(journal::Error::Rejected(Rejection::ActionResolved(..))) => Some("action_resolved"),
            Self::Journal(journal::Error::Rejected(Rejection::ActionExpired)) => Some("action_expired"),
            Self::Journal(journal::Error::Rejected(Rejection::ActionClaimed)) => Some("action_claimed"),
            Self::Journal(journal::Error::Rejected(Rejection::AnswerKind(_))) => Some("answer_kind"),
            Self::Journal(journal::Error::Store(_) | journal::Error::Blob(_)) => None,
        }
    }
}

impl From<store::Error> for Refused {
    fn from(error: store::Error) -> Self {
        Self::Journal(error.into())
    }
}
