//! Cancel: ends the queued turn; requests that the worker end the running turn; a session that never
//! had a turn is canceled itself.

use super::{Stamp, canceled, end_or_request};
use crate::domain::{
    event::{Body, CancelMode, Draft},
    open_work::OpenWork,
    session::{Hold, Session, Status},
};

pub(super) fn decide(session: &Session, open: &OpenWork, stamp: &Stamp) -> Vec<Draft> {
    let is_unused = session.status == Status::Idle && session.ended.is_none();
    match session.hold {
        _ if !is_unused => turns(session, open, stamp),
        Some(Hold::Stopped | Hold::Canceled) => Vec::new(),
        Some(Hold::Paused) => {
            [Body::SessionResumed {}, Body::SessionCanceled {}].map(|body| stamp.draft(None, body)).into()
        }
        None => vec![stamp.draft(None, Body::SessionCanceled {})],
    }
}

/// Ends the queued turn and requests the end of the running one.
pub(super) fn turns(session: &Session, open: &OpenWork, stamp: &Stamp) -> Vec<Draft> {
    let queued = session.queued.as_ref().map(|turn| stamp.draft(Some(turn.id), canceled(turn)));
    let running = end_or_request(session, open, CancelMode::Cancel, stamp);
    queued.into_iter().chain(running).collect()
}
