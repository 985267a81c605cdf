//! Checks of the session's limits in the turn loop.
//!
//! An exceeded limit ends the turn, never the session. Limits may be raised while a turn runs, so
//! re-read the limits before acting on an exceeded one.

use std::collections::HashSet;

use crate::{
    base::limit,
    domain::{
        Session, SessionId, TurnId, Usage,
        budget::Consumed,
        event::{Body, Draft},
        log_fold::LogFold,
        session::Limits,
        spend::Spend,
        turn::YieldReason,
    },
};

/// A limit that is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExceededLimit {
    pub limit: &'static str,
    pub used: u64,
    pub allowed: u64,
    pub reason: YieldReason,
    /// The session that the limit belongs to, if it is an ancestor.
    pub session: Option<SessionId>,
}

/// Usage that counts against the limits: that of the session's row, and of every append since.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Usage of the whole session, this turn included.
    pub session: Usage,
    /// Usage of its descendants, as far as it counts against its limits.
    pub below: Consumed,
    /// Usage of this turn.
    pub own: Usage,
    /// Number of turns that have started.
    pub turns: u64,
    /// Limits with a warning: those of the session, and of this turn.
    warned: HashSet<(String, u64)>,
}

impl Tally {
    /// Computes the tally at the start of a worker's run of a turn.
    pub(super) fn of(turn: TurnId, session: &Session, fold: &LogFold) -> Self {
        let mut open = session.running.iter().chain(&session.queued);
        let own = open.find(|open| open.id == turn);
        Self {
            session: session.usage,
            below: Consumed::default(),
            own: own.map(|turn| turn.usage).unwrap_or_default(),
            turns: u64::try_from(session.turns).unwrap_or_default(),
            warned: fold.warned(turn).cloned().collect(),
        }
    }

    /// Adds one more event of the turn.
    pub(super) fn add(&mut self, draft: &Draft) {
        let usage = Usage::of(draft);
        self.session += usage;
        self.own += usage;
        match &draft.body {
            Body::TurnStarted { attempt: 1, .. } => self.turns += 1,
            Body::LimitWarning { limit, allowed, session_id: None, .. } => {
                self.warned.insert((limit.clone(), *allowed));
            }
            _ => {}
        }
    }

    /// Returns whether a warning was appended for the limit at its current value.
    pub(super) fn has_warned(&self, limit: &str, allowed: u64) -> bool {
        self.warned.contains(&(limit.to_owned(), allowed))
    }

    /// Returns the due warnings: 80 % of a limit are used; once per value of the limit.
    ///
    /// `active_seconds` are those of this turn, `other_seconds` those of the session beside it.
    pub(super) fn warnings(&self, limits: Limits, active_seconds: u64, other_seconds: u64) -> Vec<Body> {
        let used = [
            ("tokens", self.session.tokens() + self.below.tokens, limits.tokens),
            ("cost_micros", self.session.cost.known_micros() + self.below.cost_micros, limits.cost_micros),
            ("duration_seconds", other_seconds + active_seconds, limits.duration_seconds),
            ("tool_calls", self.session.tool_calls + self.below.tool_calls, limits.tool_calls),
            ("turns", self.turns, limits.turns),
            ("turn_seconds", active_seconds, limits.turn_seconds),
            ("steps", self.own.steps, Some(limits.steps.unwrap_or(limit::STEPS_DEFAULT))),
        ];
        let due = used.into_iter().filter_map(|(name, used, allowed)| {
            let allowed = allowed?;
            // As u128: a limit may be as large as `u64::MAX`.
            let is_close = u128::from(used) * 5 >= u128::from(allowed) * 4 && allowed > 0;
            (is_close && !self.has_warned(name, allowed)).then(|| Body::LimitWarning {
                limit: name.to_owned(),
                used,
                allowed,
                session_id: None,
            })
        });
        due.collect()
    }
}

/// Returns the limit that prevents the session's next turn from starting.
pub(super) fn forbids_start(session: &Session) -> Option<ExceededLimit> {
    let limits = session.created.limits;
    let turns = u64::try_from(session.turns).unwrap_or_default();
    let is_retried = session.queued.as_ref().is_some_and(|turn| turn.attempt > 0);
    let exceeded = limits.turns.filter(|allowed| turns >= *allowed && !is_retried);
    exceeded
        .map(|allowed| ExceededLimit {
            limit: "turns",
            used: turns,
            allowed,
            reason: YieldReason::MaxTurns,
            session: None,
        })
        .or_else(|| used_up(limits, session.usage))
        .or_else(|| {
            let used = session.duration_seconds();
            let exceeded = limits.duration_seconds.filter(|allowed| used >= *allowed);
            exceeded.map(|allowed| budget("duration_seconds", used, allowed))
        })
}

/// Returns the limit that prevents one more model call.
pub(super) fn forbids_step(limits: Limits, tally: &Tally) -> Option<ExceededLimit> {
    let (used, allowed) = (tally.own.steps, limits.steps.unwrap_or(limit::STEPS_DEFAULT));
    let reason = YieldReason::MaxTurns;
    let steps =
        (used >= allowed).then_some(ExceededLimit { limit: "steps", used, allowed, reason, session: None });
    used_up(limits, tally.session).or(steps)
}

/// Returns the tokens that the session may still use; `None` without a limit.
pub(super) fn tokens_left(limits: Limits, used: Usage) -> Option<u64> {
    limits.tokens.map(|allowed| allowed.saturating_sub(used.tokens()))
}

/// Returns the micro-USD that the session may still cost; `None` without a limit.
pub(super) fn micros_left(limits: Limits, used: Usage) -> Option<u64> {
    limits.cost_micros.map(|allowed| allowed.saturating_sub(used.cost.known_micros()))
}

/// Returns the limit of the whole session that is used up. `tool_calls` is exceeded only by one
/// call more than allowed, so that the model can still respond after the last call.
pub(super) fn used_up(limits: Limits, usage: Usage) -> Option<ExceededLimit> {
    let reached = |limit, used, allowed: Option<u64>| {
        allowed.filter(|allowed| used >= *allowed).map(|allowed| budget(limit, used, allowed))
    };
    let calls = limits.tool_calls.filter(|allowed| usage.tool_calls > *allowed);
    reached("tokens", usage.tokens(), limits.tokens)
        .or_else(|| reached("cost_micros", usage.cost.known_micros(), limits.cost_micros))
        .or_else(|| calls.map(|allowed| budget("tool_calls", usage.tool_calls, allowed)))
}

pub(super) fn budget(limit: &'static str, used: u64, allowed: u64) -> ExceededLimit {
    ExceededLimit { limit, used, allowed, reason: YieldReason::BudgetExceeded, session: None }
}

/// Converts a spend cap or shared limit into a trip.
pub(super) fn spent(spend: Spend) -> ExceededLimit {
    let Spend { limit, used, allowed, session } = spend;
    ExceededLimit { limit, used, allowed, reason: YieldReason::BudgetExceeded, session }
}
