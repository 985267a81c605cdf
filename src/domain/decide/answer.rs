//! Answer: a caller ends an action, or its time has passed; a granted rule ends.

use super::{Rejection, Stamp};
use crate::domain::{
    action::{ActionAnswer, ActionState, Closed, Consequences, Ended},
    event::{Body, Draft},
    ids::{ActionId, ClaimId, EventId},
    permission::Grant,
    session::{Session, Status},
};

/// A caller's answer, with the state of its action. `claim` is the claim that the caller says it has.
pub(super) fn decide(
    session: &Session,
    state: &ActionState,
    (answer, consequences): (ActionAnswer, Consequences),
    claim: Option<ClaimId>,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    check(session, state)?;
    if state.claim.is_some() && state.claim != claim {
        return Err(Rejection::ActionClaimed);
    }
    if state.kind != answer.kind() {
        return Err(Rejection::AnswerKind(state.kind));
    }
    let first = match answer {
        ActionAnswer::Result(answer) => Body::UserCustomToolResult(answer),
        ActionAnswer::Confirmation(confirmation) => Body::UserToolConfirmation(Box::new(confirmation)),
        ActionAnswer::Answers(answers) => Body::UserAnswer(answers),
    };
    let first = stamp.draft(Some(state.turn), first);
    let granted = consequences
        .grant
        .map(|grant| Body::PermissionGranted(Box::new(Grant { confirmation_event_id: first.id, ..grant })));
    let closed =
        consequences.closed.into_iter().map(|(action_id, reason)| Body::ActionClosed { action_id, reason });
    let more = granted.into_iter().chain(closed).map(|body| stamp.draft(Some(state.turn), body));
    Ok([first].into_iter().chain(more).collect())
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

/// Ends a granted rule.
pub(super) fn revoke(
    session: &Session,
    grant_event_id: EventId,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    Ok(vec![stamp.draft(None, Body::PermissionRevoked { grant_event_id })])
}
