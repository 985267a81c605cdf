//! The session's limits, as the turn loop checks them.
//!
//! A tripped limit ends the turn, never the session. Limits may be raised while a
//! turn runs, so a trip is only believed by limits that were read just before.

use crate::{
    base::limit,
    domain::{Session, Usage, session::Limits, turn::YieldReason},
};

/// A limit that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trip {
    pub limit: &'static str,
    pub used: u64,
    pub allowed: u64,
    pub reason: YieldReason,
}

/// The limit that forbids the session's next turn to start.
pub(super) fn forbids_start(session: &Session) -> Option<Trip> {
    let turns = u64::try_from(session.turns).unwrap_or_default();
    let allowed = session.created.limits.turns.filter(|allowed| turns >= *allowed);
    allowed
        .map(|allowed| Trip { limit: "turns", used: turns, allowed, reason: YieldReason::MaxTurns })
        .or_else(|| tokens(session.created.limits, session.usage))
}

/// The limit that forbids one more model call.
pub(super) fn forbids_step(limits: Limits, session: Usage, steps_of_turn: u64) -> Option<Trip> {
    let allowed = limits.steps.unwrap_or(limit::STEPS_DEFAULT);
    let steps = (steps_of_turn >= allowed).then_some(Trip {
        limit: "steps",
        used: steps_of_turn,
        allowed,
        reason: YieldReason::MaxTurns,
    });
    tokens(limits, session).or(steps)
}

/// Tokens that the session may still use; `None` without a limit.
pub(super) fn tokens_left(limits: Limits, used: Usage) -> Option<u64> {
    limits.tokens.map(|allowed| allowed.saturating_sub(used.tokens()))
}

/// The limit `tokens`, when it is used up.
pub(super) fn tokens(limits: Limits, usage: Usage) -> Option<Trip> {
    let (used, allowed) = (usage.tokens(), limits.tokens?);
    (used >= allowed).then_some(Trip { limit: "tokens", used, allowed, reason: YieldReason::BudgetExceeded })
}
