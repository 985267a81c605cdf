//! Retry: the last turn, which ended with an error, is queued again.

use super::{Rejection, Stamp, rejection::takes_input};
use crate::domain::{
    event::{Body, Draft},
    ids::TurnId,
    session::Session,
};

pub(super) fn decide(session: &Session, turn_id: TurnId, stamp: &Stamp) -> Result<Vec<Draft>, Rejection> {
    takes_input(session)?;
    if session.running.is_some() || session.queued.is_some() {
        return Err(Rejection::TurnRunning);
    }
    match &session.ended {
        Some(last) if last.id != turn_id => Err(Rejection::NotLastTurn(last.id)),
        Some(last) if last.has_failed() => {
            let retried = Body::TurnRetried { turn_id, attempt: last.attempt + 1 };
            Ok(vec![stamp.draft(Some(turn_id), retried)])
        }
        Some(_) | None => Err(Rejection::TurnNotFailed),
    }
}
