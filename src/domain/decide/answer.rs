//! Answer: a caller ends an action, or its time has passed.

use super::{Rejection, Stamp};
use crate::domain::{
    action::{ActionState, Closed, Ended, ToolAnswer},
    event::{Body, Draft},
    ids::{ActionId, ClaimId},
    session::{Session, Status},
};

/// A caller's answer, with the state of its action. `claim` is the claim that the caller says it has.
pub(super) fn decide(
    session: &Session,
    state: &ActionState,
    answer: ToolAnswer,
    claim: Option<ClaimId>,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    check(session, state)?;
    if state.claim.is_some() && state.claim != claim {
        return Err(Rejection::ActionClaimed);
    }
    Ok(vec![stamp.draft(Some(state.turn), Body::UserCustomToolResult(answer))])
}

/// Checks that nobody else has claimed an action that can be answered.
pub(super) fn claim(session: &Session, state: &ActionState) -> Result<Vec<Draft>, Rejection> {
    check(session, state)?;
    if state.claim.is_some() { Err(Rejection::ActionClaimed) } else { Ok(Vec::new()) }
}

/// Returns why an action cannot be answered, if it cannot.
fn check(session: &Session, state: &ActionState) -> Result<(), Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    match state.ended {
        Some((Ended::Expired, _)) => Err(Rejection::ActionExpired),
        Some((ended, at)) => Err(Rejection::ActionResolved(ended, at)),
        None if state.is_expired => Err(Rejection::ActionExpired),
        None => Ok(()),
    }
}

/// Closes actions of the running turn whose time has passed.
pub(super) fn expire(session: &Session, expired: &[ActionId], stamp: &Stamp) -> Vec<Draft> {
    let Some(turn) = &session.running else { return Vec::new() };
    let close = |action_id: &ActionId| {
        let body = Body::ActionClosed { action_id: *action_id, reason: Closed::Expired };
        stamp.draft(Some(turn.id), body)
    };
    expired.iter().map(close).collect()
}
