//! Heartbeat: a caller extends the sandbox's life; the log records it at intervals.

use super::{Rejection, Stamp};
use crate::domain::{
    event::{Body, Draft},
    ids::SandboxId,
    session::{Session, Status},
};

pub(super) fn decide(
    session: &Session,
    sandbox: Option<SandboxId>,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let said = sandbox.map(|sandbox_id| stamp.draft(None, Body::SandboxHeartbeat { sandbox_id }));
    Ok(said.into_iter().collect())
}
