//! Steer: the input joins the queued turn, or creates one.

use super::{Input, Rejection, Stamp, end_or_request};
use crate::domain::{
    event::{Body, CancelMode, Draft},
    open_work::OpenWork,
    session::{Session, Status},
};

pub(super) fn decide(
    session: &Session,
    open: &OpenWork,
    input: Input,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    if session.created.agent_snapshot.is_none() {
        return Err(Rejection::NoAgent);
    }
    let turn_id = session.queued.as_ref().map_or_else(|| stamp.origin.id(), |turn| turn.id);
    let body = Body::UserMessage { text: input.text, input: input.object, envelope: input.envelope };
    let mut message = stamp.draft(Some(turn_id), body);
    message.refs = input.refs;
    // The message comes first: an interrupted turn must find its successor queued.
    let interrupt = input.interrupt.then(|| end_or_request(session, open, CancelMode::Interrupt, stamp));
    Ok([message].into_iter().chain(interrupt.into_iter().flatten()).collect())
}
