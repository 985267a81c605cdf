//! Archive: ends all turns and open calls and closes the session.
//!
//! The worker is not consulted: the journal raises the lease epoch, so the worker's later writes
//! are refused.

use super::{Stamp, canceled, withdrawn};
use crate::domain::{
    event::{Body, Draft},
    open_work::OpenWork,
    session::{Session, Status},
};

pub(super) fn decide(session: &Session, open: &OpenWork, stamp: &Stamp) -> Vec<Draft> {
    if session.status == Status::Archived {
        return Vec::new();
    }
    let running = session.running.as_ref().map(|turn| withdrawn(session, turn, open, "archived", stamp));
    let turns = session.running.iter().chain(&session.queued);
    let ends = turns.map(|turn| stamp.draft(Some(turn.id), canceled(turn)));
    // The ends of the turns make the session idle; then it becomes archived.
    let closed = stamp.draft(None, Body::SessionStatusChanged { from: session.status, to: Status::Archived });
    running.into_iter().flatten().chain(ends).chain([closed]).collect()
}
