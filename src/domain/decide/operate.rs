//! Operate: a caller uses the box of the session itself, past its agent.

use super::{Rejection, Stamp};
use crate::domain::{
    event::{Body, Draft},
    ids::OperationId,
    operation,
    session::{Session, Status},
};

pub(super) fn decide(
    session: &Session,
    operation: OperationId,
    request: &operation::Request,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let operation::Request::Exec { command, working_dir, .. } = request else { return Ok(Vec::new()) };
    if let Some((limit, ..)) = operation::used_up(session) {
        return Err(Rejection::BudgetExceeded(limit));
    }
    let body =
        Body::ExecStarted { exec_id: operation, command: command.clone(), working_dir: working_dir.clone() };
    Ok(vec![stamp.draft(None, body)])
}
