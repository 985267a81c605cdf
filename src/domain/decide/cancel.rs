//! Cancel: ends the queued turn; requests that the worker end the running turn.

use super::{Stamp, cancel_request, canceled};
use crate::domain::{
    event::{CancelMode, Draft},
    session::Session,
};

pub(super) fn decide(session: &Session, stamp: &Stamp) -> Vec<Draft> {
    let queued =
        session.queued.as_ref().map(|turn| stamp.draft(Some(turn.id), canceled(turn.id, turn.usage)));
    let running = cancel_request(session, CancelMode::Cancel, stamp);
    [queued, running].into_iter().flatten().collect()
}
