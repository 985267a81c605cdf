//! Start, stop, pause and resume.

use super::{Rejection, Stamp, cancel};
use crate::domain::{
    event::{Body, Draft},
    open_work::OpenWork,
    operation,
    session::{Hold, Session, Status},
};

/// Starts the sandbox; appends an event if there was no sandbox, or the session was stopped, canceled
/// or failed.
pub(super) fn start(session: &Session, has_sandbox: bool, stamp: &Stamp) -> Result<Vec<Draft>, Rejection> {
    match session.hold {
        _ if session.status == Status::Archived => return Err(Rejection::Archived),
        Some(Hold::Paused) => return Err(Rejection::Paused),
        Some(Hold::Stopped | Hold::Canceled) | None => {}
    }
    if let Some((limit, ..)) = operation::used_up(session) {
        return Err(Rejection::BudgetExceeded(limit));
    }
    let is_new = session.hold.is_some() || session.has_lost_sandbox() || !has_sandbox;
    Ok(is_new.then(|| stamp.draft(None, Body::SessionStarted {})).into_iter().collect())
}

/// Ends the running and queued turns and stops the session until a new request.
pub(super) fn stop(
    session: &Session,
    open: &OpenWork,
    reason: Option<String>,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let mut drafts = cancel::turns(session, open, stamp);
    if session.hold != Some(Hold::Stopped) {
        drafts.push(stamp.draft(None, Body::SessionStopped { reason }));
    }
    Ok(drafts)
}

pub(super) fn pause(session: &Session, stamp: &Stamp) -> Result<Vec<Draft>, Rejection> {
    match session.hold {
        _ if session.status == Status::Archived => Err(Rejection::Archived),
        Some(Hold::Stopped) => Err(Rejection::Stopped),
        Some(Hold::Paused) => Ok(Vec::new()),
        Some(Hold::Canceled) | None => Ok(vec![stamp.draft(None, Body::SessionPaused {})]),
    }
}

pub(super) fn resume(session: &Session, stamp: &Stamp) -> Result<Vec<Draft>, Rejection> {
    match session.hold {
        _ if session.status == Status::Archived => Err(Rejection::Archived),
        Some(Hold::Stopped) => Err(Rejection::Stopped),
        Some(Hold::Paused) => Ok(vec![stamp.draft(None, Body::SessionResumed {})]),
        Some(Hold::Canceled) | None => Ok(Vec::new()),
    }
}

/// Changes no state; the journal re-evaluates pending work.
pub(super) fn wake(session: &Session) -> Result<Vec<Draft>, Rejection> {
    match session.hold {
        _ if session.status == Status::Archived => Err(Rejection::Archived),
        Some(Hold::Paused) => Err(Rejection::Paused),
        Some(Hold::Stopped | Hold::Canceled) | None => Ok(Vec::new()),
    }
}
