//! Steer: the input joins the queued turn, or creates one; the running turn reads what steers it.

use super::{Input, InputMode, Rejection, Stamp, end_or_request, rejection::takes_input};
use crate::domain::{
    actor::ActorKind,
    event::{Body, CancelMode, Draft},
    open_work::OpenWork,
    session::{Hold, Session},
};

pub(super) fn decide(
    session: &Session,
    open: &OpenWork,
    input: Input,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    takes_input(session)?;
    // An agent does not release what a caller has stopped.
    if stamp.actor.kind == ActorKind::Agent && session.hold == Some(Hold::Stopped) {
        return Err(Rejection::Stopped);
    }
    let turn_id = session.queued.as_ref().map_or_else(|| stamp.origin.id(), |turn| turn.id);
    let mode = input.mode;
    let message = input.message(turn_id, stamp);
    // The message comes first: an interrupted turn must find its successor queued.
    let interrupt =
        (mode == InputMode::Interrupt).then(|| end_or_request(session, open, CancelMode::Interrupt, stamp));
    Ok([message].into_iter().chain(interrupt.into_iter().flatten()).collect())
}

/// A message of the queued turn: its `seq`, and whether it steers the running one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedMessage {
    pub seq: i64,
    pub steers: bool,
}

/// The running turn reads the messages of the queued turn that steer it.
pub(super) fn read(session: &Session, queued: &[QueuedMessage], stamp: &Stamp) -> Vec<Draft> {
    let (Some(running), Some(from)) = (&session.running, &session.queued) else { return Vec::new() };
    let seqs: Vec<_> = queued.iter().filter(|message| message.steers).map(|message| message.seq).collect();
    if seqs.is_empty() {
        return Vec::new();
    }
    let from_is_empty = seqs.len() == queued.len();
    let body = Body::TurnSteered { turn_id: running.id, from_turn_id: from.id, seqs, from_is_empty };
    vec![stamp.draft(Some(running.id), body)]
}
