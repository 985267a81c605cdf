//! Limits that a session shares with its descendants.
//!
//! A session's limits on tokens, cost and tool calls also bind its children and their descendants.
//! Amounts reserved for calls in progress count as used, as they do for spend caps (`spend`): of
//! all calls that compete for one limit, only the last one granted may exceed it.

use std::ops::Add;

use super::{
    ids::SessionId,
    session::Limits,
    spend::{Spend, Verdict},
};

/// Limits of one session, and the usage that counts against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub session: SessionId,
    pub limits: Limits,
    /// Used by the session and its descendants.
    pub used: Consumed,
    /// Reserved for their calls in progress.
    pub reserved: Consumed,
}

/// Amounts that shared limits count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    pub tokens: u64,
    pub cost_micros: u64,
    pub tool_calls: u64,
}

/// The most that a call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxUsage {
    pub tokens: u64,
    /// `None` if the model has no price.
    pub cost_micros: Option<u64>,
}

impl Add for Consumed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            cost_micros: self.cost_micros + other.cost_micros,
            tool_calls: self.tool_calls + other.tool_calls,
        }
    }
}

impl Budget {
    /// Returns used plus reserved amounts.
    fn taken(&self) -> Consumed {
        self.used + self.reserved
    }

    /// Returns the limit that is used up.
    ///
    /// Tool calls may be used up to the limit: the limit is exceeded if `more` further calls do not
    /// fit.
    pub fn used_up(&self, more: u64) -> Option<Spend> {
        let calls = self.used.tool_calls.saturating_add(more);
        self.spends().into_iter().flatten().find(|spend| match spend.limit {
            "tool_calls" => calls > spend.allowed,
            _ => spend.used >= spend.allowed,
        })
    }

    /// Returns the limits of which at least 80 % are used.
    pub fn close(&self) -> impl Iterator<Item = Spend> {
        // As u128: a limit may be as large as `u64::MAX`.
        let is_close =
            |spend: &Spend| spend.allowed > 0 && u128::from(spend.used) * 5 >= u128::from(spend.allowed) * 4;
        self.spends().into_iter().flatten().filter(is_close)
    }

    /// Returns whether calls need a reservation before they are made.
    pub fn needs_reservation(&self) -> bool {
        self.limits.tokens.is_some() || self.limits.cost_micros.is_some()
    }

    /// Returns the tokens neither used nor reserved; `None` without a limit.
    pub fn tokens_left(&self) -> Option<u64> {
        self.limits.tokens.map(|allowed| allowed.saturating_sub(self.taken().tokens))
    }

    /// Returns the micro-USD neither used nor reserved; `None` without a limit.
    pub fn micros_left(&self) -> Option<u64> {
        self.limits.cost_micros.map(|allowed| allowed.saturating_sub(self.taken().cost_micros))
    }

    fn spends(&self) -> [Option<Spend>; 3] {
        let spend = |limit, used, allowed: Option<u64>| {
            allowed.map(|allowed| Spend { limit, used, allowed, session: Some(self.session) })
        };
        let (limits, used) = (self.limits, self.used);
        [
            spend("tokens", used.tokens, limits.tokens),
            spend("cost_micros", used.cost_micros, limits.cost_micros),
            spend("tool_calls", used.tool_calls, limits.tool_calls),
        ]
    }
}

/// Decides whether a call that may use `most` is allowed under all `budgets`.
pub fn check_budgets(budgets: &[Budget], most: MaxUsage) -> Verdict {
    if let Some(spend) = budgets.iter().find_map(|budget| budget.used_up(0)) {
        return Verdict::Exceeded(spend);
    }
    if most.cost_micros.is_none() && budgets.iter().any(|budget| budget.limits.cost_micros.is_some()) {
        return Verdict::Unpriced;
    }
    // A call that uses nothing of a kind does not wait for it.
    let waits = |budget: &Budget| {
        (most.tokens > 0 && budget.tokens_left() == Some(0))
            || (most.cost_micros != Some(0) && budget.micros_left() == Some(0))
    };
    if budgets.iter().any(waits) {
        return Verdict::Wait;
    }
    Verdict::Granted { close: budgets.iter().flat_map(Budget::close).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    fn budget(used: u64, reserved: u64) -> Budget {
        let consumed = |cost_micros| Consumed { cost_micros, ..Consumed::default() };
        Budget {
            session: Origin::system().id(),
            limits: Limits { cost_micros: Some(100), ..Limits::default() },
            used: consumed(used),
            reserved: consumed(reserved),
        }
    }

    fn most(cost_micros: Option<u64>) -> MaxUsage {
        MaxUsage { tokens: 5, cost_micros }
    }

    fn spent(budget: Budget, limit: &'static str, used: u64, allowed: u64) -> Spend {
        Spend { limit, used, allowed, session: Some(budget.session) }
    }

    #[test]
    fn the_last_call_that_is_let_through_may_overstep_a_limit_and_no_other() {
        let granted = Verdict::Granted { close: Vec::new() };
        assert_eq!(check_budgets(&[budget(0, 99)], most(Some(7))), granted);
        assert_eq!(check_budgets(&[budget(1, 99)], most(Some(7))), Verdict::Wait);
        assert_eq!(check_budgets(&[budget(1, 99)], most(Some(0))), granted, "what is free waits for nobody");
        let full = budget(100, 0);
        let exceeded = Verdict::Exceeded(spent(full, "cost_micros", 100, 100));
        assert_eq!(check_budgets(&[budget(0, 0), full], most(Some(0))), exceeded);
        assert_eq!(check_budgets(&[budget(0, 0)], most(None)), Verdict::Unpriced);
        assert_eq!(check_budgets(&[], most(None)), granted);
    }

    #[test]
    fn calls_of_tools_are_used_to_the_last_and_no_caller_asks_for_one_more() {
        let limits = Limits { tool_calls: Some(5), tokens: Some(50), ..Limits::default() };
        let used = Consumed { tool_calls: 5, tokens: 39, cost_micros: 1 };
        let full = Budget { limits, used, ..budget(0, 0) };
        assert_eq!((full.used_up(0), full.tokens_left(), full.micros_left()), (None, Some(11), None));
        assert_eq!(full.used_up(1), Some(spent(full, "tool_calls", 5, 5)));
        let close: Vec<_> = full.close().collect();
        assert_eq!(close, [spent(full, "tool_calls", 5, 5)], "of tokens 78 % are used");
    }
}
