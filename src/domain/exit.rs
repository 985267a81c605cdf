//! Exit status of a session: computed from its state, not stored.
//!
//! | status | yield reason of its last turn | error code | exit status |
//! |---|---|---|---|
//! | any but `queued` and `running`, stopped by a caller | any | any | `stopped` |
//! | `queued`, `running`, `awaiting_input` | any | any | none yet |
//! | `idle`, canceled by a caller before its first turn | no turn has ended | | `canceled` |
//! | `idle` | no turn has ended | | none yet |
//! | `failed` | no turn has ended | | `error` |
//! | `archived` | no turn has ended | | `stopped` |
//! | `archived` | `canceled` | none | `stopped` |
//! | `archived` | `needs_input`, `requires_action` | | `stopped` |
//! | `idle`, `failed` | `needs_input`, `requires_action` | | none yet |
//! | `idle`, `failed` | `canceled` | none | `canceled` |
//! | `idle`, `failed`, `archived` | `canceled`, by a check before it started | `payment_required` | `payment_required` |
//! | the same | the same | any other | `canceled` |
//! | `idle`, `failed`, `archived` | `completed` | | `completed` |
//! | the same | `budget_exceeded`, `deadline_exceeded`, `max_turns` | | `budget_hit` |
//! | the same | `error` | `payment_required` | `payment_required` |
//! | the same | `error` | `sandbox_unavailable` | `tool_call_failed` |
//! | the same | `error` | `lifecycle_hook_failed` | `lifecycle_hook_failed` |
//! | the same | `error` | `missing_repo_access` | `missing_repo_access` |
//! | the same | `error` | `recovery_exhausted` | `interrupted` |
//! | the same | `error` | any other | `error` |

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    session::{Hold, Session, Status},
    turn::{LastTurn, YieldReason},
};

/// Outcome of a session that currently does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// The agent finished.
    Completed,
    /// A limit or spend cap ended the last turn; raise it and steer.
    BudgetHit,
    /// The provider or the operator requires payment first.
    PaymentRequired,
    /// Tools could not run: no sandbox was available.
    ToolCallFailed,
    /// A lifecycle hook of the environment failed.
    LifecycleHookFailed,
    /// A repository that the session needs cannot be read.
    MissingRepoAccess,
    /// A caller canceled the last turn, or the session before its first turn; or a check before the
    /// turn failed.
    Canceled,
    /// The turn exhausted its attempts because its workers crashed.
    Interrupted,
    /// Another failure; see the turn's error.
    Error,
    /// A caller stopped or archived the session before it completed.
    Stopped,
}

/// Reason why a sandbox cannot be prepared; a retry would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreparationFailure {
    /// A lifecycle hook of the environment failed.
    LifecycleHook,
    /// A repository may not be read with what there is for it.
    RepoAccess,
    /// A repository cannot be cloned as it is named.
    Source,
    /// A skill does not exist, or does not fit into the sandbox.
    Skill,
    /// The node or the organization had no capacity for it in time, or it is refused here.
    NotAdmitted,
}

impl PreparationFailure {
    /// The error of a turn that ends by it.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::LifecycleHook => "lifecycle_hook_failed",
            Self::RepoAccess => "missing_repo_access",
            Self::Source => "source_failed",
            Self::Skill => "skill_failed",
            Self::NotAdmitted => "sandbox_unavailable",
        }
    }
}

impl Session {
    /// Returns the outcome; `None` while it is open.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        let is_idle = !matches!(self.status, Status::Queued | Status::Running);
        match self.hold {
            Some(Hold::Stopped) if is_idle => Some(ExitStatus::Stopped),
            Some(Hold::Canceled) if self.status == Status::Idle => Some(ExitStatus::Canceled),
            Some(Hold::Stopped | Hold::Canceled | Hold::Paused) | None => {
                exit_status(self.status, self.ended.as_ref().map(LastTurn::from).as_ref())
            }
        }
    }
}

fn exit_status(status: Status, ended: Option<&LastTurn>) -> Option<ExitStatus> {
    let is_closed = match status {
        Status::Queued | Status::Running | Status::AwaitingInput => return None,
        Status::Idle | Status::Failed => false,
        Status::Archived => true,
    };
    let open = is_closed.then_some(ExitStatus::Stopped);
    let Some((ended, reason)) = ended.and_then(|turn| Some((turn, turn.yield_reason?))) else {
        return open.or_else(|| (status == Status::Failed).then_some(ExitStatus::Error));
    };
    match reason {
        YieldReason::Completed => Some(ExitStatus::Completed),
        YieldReason::NeedsInput | YieldReason::RequiresAction => open,
        YieldReason::Canceled => match ended.error_code.as_deref() {
            Some("payment_required") => Some(ExitStatus::PaymentRequired),
            Some(_) => Some(ExitStatus::Canceled),
            None => open.or(Some(ExitStatus::Canceled)),
        },
        YieldReason::BudgetExceeded | YieldReason::DeadlineExceeded | YieldReason::MaxTurns => {
            Some(ExitStatus::BudgetHit)
        }
        YieldReason::Error | YieldReason::OutputInvalid => Some(match ended.error_code.as_deref() {
            Some("payment_required") => ExitStatus::PaymentRequired,
            Some("sandbox_unavailable") => ExitStatus::ToolCallFailed,
            Some("lifecycle_hook_failed") => ExitStatus::LifecycleHookFailed,
            Some("missing_repo_access") => ExitStatus::MissingRepoAccess,
            Some("recovery_exhausted") => ExitStatus::Interrupted,
            Some(_) | None => ExitStatus::Error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{ExitStatus::*, Status, YieldReason, exit_status};
    use crate::{
        base::{Id, Origin},
        domain::{TurnId, turn::LastTurn},
    };

    fn of(status: Status, reason: YieldReason, code: Option<&str>) -> Option<super::ExitStatus> {
        let id: TurnId = Id::from_uuid(Origin::system().id::<crate::domain::TurnKind>().uuid());
        let error_code = code.map(str::to_owned);
        let (state, yield_reason) = (reason.state(), Some(reason));
        exit_status(status, Some(&LastTurn { id, state, yield_reason, result_event_id: None, error_code }))
    }

    #[test]
    fn what_goes_on_has_no_exit_status() {
        for status in [Status::Queued, Status::Running, Status::AwaitingInput] {
            assert_eq!(exit_status(status, None), None);
            assert_eq!(of(status, YieldReason::Completed, None), None);
        }
        assert_eq!(exit_status(Status::Idle, None), None);
        assert_eq!(exit_status(Status::Failed, None), Some(Error));
        assert_eq!(exit_status(Status::Archived, None), Some(Stopped));
    }

    #[test]
    fn the_table_holds_line_by_line() {
        let error = YieldReason::Error;
        for (reason, code, at_rest, archived) in [
            (YieldReason::Completed, None, Some(Completed), Some(Completed)),
            (YieldReason::NeedsInput, None, None, Some(Stopped)),
            (YieldReason::RequiresAction, None, None, Some(Stopped)),
            (YieldReason::Canceled, None, Some(Canceled), Some(Stopped)),
            (YieldReason::Canceled, Some("agent_disabled"), Some(Canceled), Some(Canceled)),
            (YieldReason::Canceled, Some("payment_required"), Some(PaymentRequired), Some(PaymentRequired)),
            (YieldReason::BudgetExceeded, None, Some(BudgetHit), Some(BudgetHit)),
            (YieldReason::DeadlineExceeded, None, Some(BudgetHit), Some(BudgetHit)),
            (YieldReason::MaxTurns, None, Some(BudgetHit), Some(BudgetHit)),
            (error, Some("payment_required"), Some(PaymentRequired), Some(PaymentRequired)),
            (error, Some("sandbox_unavailable"), Some(ToolCallFailed), Some(ToolCallFailed)),
            (error, Some("lifecycle_hook_failed"), Some(LifecycleHookFailed), Some(LifecycleHookFailed)),
            (error, Some("missing_repo_access"), Some(MissingRepoAccess), Some(MissingRepoAccess)),
            (error, Some("recovery_exhausted"), Some(Interrupted), Some(Interrupted)),
            (error, Some("model_unknown"), Some(Error), Some(Error)),
            (error, None, Some(Error), Some(Error)),
        ] {
            for status in [Status::Idle, Status::Failed] {
                assert_eq!(of(status, reason, code), at_rest, "{status:?} {reason:?} {code:?}");
            }
            assert_eq!(of(Status::Archived, reason, code), archived, "archived {reason:?} {code:?}");
        }
    }
}
