//! Compact: the history is summarized before the next model call, or by a turn of its own.

use super::{Rejection, Stamp, rejection::takes_input};
use crate::domain::{
    compaction::CompactionRequest,
    event::{Body, Draft},
    session::Session,
};

pub(super) fn decide(
    session: &Session,
    request: CompactionRequest,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    takes_input(session)?;
    if session.usage.steps == 0 {
        return Err(Rejection::NothingToCompact);
    }
    let is_idle = session.running.is_none() && session.queued.is_none();
    let turn_id = is_idle.then(|| stamp.origin.id());
    Ok(vec![stamp.draft(turn_id, Body::HistoryCompactionRequested(request))])
}
