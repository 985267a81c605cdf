//! Cancel: ends the queued turn; requests that the worker end the running turn; a session that never
//! had a turn is canceled itself.

use super::{Stamp, cancel_request, canceled};
use crate::domain::{
    event::{Body, CancelMode, Draft},
    session::{Hold, Session, Status},
};

pub(super) fn decide(session: &Session, stamp: &Stamp) -> Vec<Draft> {
    let is_unused = session.status == Status::Idle && session.ended.is_none();
    match session.hold {
        _ if !is_unused => turns(session, stamp),
        Some(Hold::Stopped | Hold::Canceled) => Vec::new(),
        Some(Hold::Paused) => {
            [Body::SessionResumed {}, Body::SessionCanceled {}].map(|body| stamp.draft(None, body)).into()
        }
        None => vec![stamp.draft(None, Body::SessionCanceled {})],
    }
}

/// Ends the queued turn and requests the end of the running one.
pub(super) fn turns(session: &Session, stamp: &Stamp) -> Vec<Draft> {
    let queued =
        session.queued.as_ref().map(|turn| stamp.draft(Some(turn.id), canceled(turn.id, turn.usage)));
    let running = cancel_request(session, CancelMode::Cancel, stamp);
    [queued, running].into_iter().flatten().collect()
}
