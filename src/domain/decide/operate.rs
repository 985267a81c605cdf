//! Operate: a caller runs an operation on the session's sandbox, without the agent.

use super::{Rejection, Stamp};
use crate::domain::{
    event::{Body, Draft},
    ids::OperationId,
    operation::{self, Request},
    session::{Hold, Session, Status},
};

pub(super) fn decide(
    session: &Session,
    operation: OperationId,
    request: &Request,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    // Stop, start and kill are allowed while the session is paused or stopped.
    let is_use = !matches!(request, Request::Stop | Request::Start | Request::Kill { .. });
    match session.hold.filter(|_| is_use) {
        _ if session.status == Status::Archived => return Err(Rejection::Archived),
        Some(Hold::Paused) => return Err(Rejection::Paused),
        Some(Hold::Stopped) => return Err(Rejection::Stopped),
        Some(Hold::Canceled) | None => {}
    }
    if is_use && session.has_lost_sandbox() {
        return Err(Rejection::Failed);
    }
    let is_restore = matches!(request, Request::Restore { .. });
    if is_restore && session.running.is_some() {
        return Err(Rejection::TurnRunning);
    }
    if (is_restore || matches!(request, Request::Exec { .. }))
        && let Some((limit, ..)) = operation::used_up(session)
    {
        return Err(Rejection::BudgetExceeded(limit));
    }
    let Request::Exec { command, working_dir, .. } = request else { return Ok(Vec::new()) };
    let body =
        Body::ExecStarted { exec_id: operation, command: command.clone(), working_dir: working_dir.clone() };
    Ok(vec![stamp.draft(None, body)])
}
