//! Spend caps over trailing days, and the prepaid balance.
//!
//! `Store::reserve` calls [`verdict`] before each model call and each command, one at a time. `turn`,
//! `journal` and `operation` call it earlier, to refuse a turn or a request. Amounts reserved for
//! calls in progress count as spent, so concurrent calls cannot exceed a cap together: only the last
//! one granted may exceed it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{event::Body, ids::SessionId};

/// Spend caps in micro-USD over trailing days, counted in whole hours including the current one; an absent
/// cap is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpendCaps {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days_1: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days_7: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days_28: Option<u64>,
}

impl SpendCaps {
    /// Returns the caps, shortest window first.
    pub fn windows(&self) -> [Option<u64>; 3] {
        [self.days_1, self.days_7, self.days_28]
    }

    /// Returns whether any cap is set.
    pub fn bind(&self) -> bool {
        self.windows().iter().any(Option::is_some)
    }
}

/// Micro-USD spent over trailing days, counted in whole hours including the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Spent {
    pub days_1: u64,
    pub days_7: u64,
    pub days_28: u64,
}

impl Spent {
    fn windows(&self) -> [u64; 3] {
        [self.days_1, self.days_7, self.days_28]
    }
}

/// Caps and spending of an organization or an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapStatus {
    pub caps: SpendCaps,
    pub spent: Spent,
    /// Reserved for calls in progress.
    pub reserved: u64,
}

impl Spend {
    /// Returns the length of its window, in days.
    pub fn days(&self) -> i32 {
        let names = OF_ORGANIZATION.iter().chain(&OF_AGENT);
        let at = names.clone().position(|name| *name == self.limit).unwrap_or_default();
        [1, 7, 28][at % 3]
    }

    /// Returns the event that 80 % are used.
    pub fn warning(self) -> Body {
        let Self { limit, used, allowed, session } = self;
        Body::LimitWarning { limit: limit.to_owned(), used, allowed, session_id: session }
    }

    /// Returns the event that it is used up.
    pub fn exceeded(self) -> Body {
        let Self { limit, used, allowed, session } = self;
        Body::LimitExceeded { limit: limit.to_owned(), used, allowed, session_id: session }
    }

    /// Returns the same value; `session` is cleared if it is `own`.
    pub fn seen_from(self, own: SessionId) -> Self {
        Self { session: self.session.filter(|session| *session != own), ..self }
    }

    /// Returns whether it is a cap of an agent.
    pub fn is_of_agent(&self) -> bool {
        OF_AGENT.contains(&self.limit)
    }
}

/// Decision on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed; `close` lists caps of which at least 80 % are spent.
    Granted { close: Vec<Spend> },
    /// The rest is reserved for calls in progress; retry soon.
    Wait,
    /// A cap is used up.
    Exceeded(Spend),
    /// The organization's balance is used up.
    BalanceExhausted,
    /// A cap applies, but the cost of the call is unknown.
    Unpriced,
}

/// A cap or limit by name, with its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spend {
    pub limit: &'static str,
    pub used: u64,
    pub allowed: u64,
    /// The session that the limit belongs to, if it is an ancestor.
    pub session: Option<SessionId>,
}

const OF_ORGANIZATION: [&str; 3] =
    ["organization_spend_1d", "organization_spend_7d", "organization_spend_28d"];
const OF_AGENT: [&str; 3] = ["agent_spend_1d", "agent_spend_7d", "agent_spend_28d"];

/// Decides whether one more call is allowed under the caps and the balance.
pub fn verdict(organization: &CapStatus, agent: &CapStatus, balance: Option<i64>) -> Verdict {
    let caps = || caps(OF_ORGANIZATION, organization).chain(caps(OF_AGENT, agent));
    if let Some((spend, _)) = caps().find(|(spend, _)| spend.used >= spend.allowed) {
        return Verdict::Exceeded(spend);
    }
    if balance.is_some_and(|left| left <= 0) {
        return Verdict::BalanceExhausted;
    }
    let needs_reservation = |left: i64| u64::try_from(left).unwrap_or_default() <= organization.reserved;
    if balance.is_some_and(needs_reservation)
        || caps().any(|(spend, reserved)| spend.used.saturating_add(reserved) >= spend.allowed)
    {
        return Verdict::Wait;
    }
    let is_close = |spend: &Spend| u128::from(spend.used) * 5 >= u128::from(spend.allowed) * 4;
    Verdict::Granted { close: caps().map(|(spend, _)| spend).filter(is_close).collect() }
}

fn caps(names: [&'static str; 3], status: &CapStatus) -> impl Iterator<Item = (Spend, u64)> {
    let reserved = status.reserved;
    let all = names.into_iter().zip(status.spent.windows()).zip(status.caps.windows());
    all.filter_map(move |((limit, used), allowed)| {
        Some((Spend { limit, used, allowed: allowed?, session: None }, reserved))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(cap: Option<u64>, spent: u64, reserved: u64) -> CapStatus {
        let caps = SpendCaps { days_7: cap, ..SpendCaps::default() };
        CapStatus { caps, spent: Spent { days_1: 0, days_7: spent, days_28: spent }, reserved }
    }

    fn org(cap: Option<u64>, spent: u64, reserved: u64, balance: Option<i64>) -> Verdict {
        verdict(&status(cap, spent, reserved), &CapStatus::default(), balance)
    }

    #[test]
    fn the_last_call_that_is_let_through_may_overstep_a_cap_and_no_other() {
        assert_eq!(org(Some(100), 0, 99, None), Verdict::Granted { close: Vec::new() });
        assert_eq!(org(Some(100), 1, 99, None), Verdict::Wait);
        let spent = Spend { limit: "organization_spend_7d", used: 100, allowed: 100, session: None };
        assert_eq!(org(Some(100), 100, 0, None), Verdict::Exceeded(spent));
        assert_eq!(org(None, u64::MAX, u64::MAX, None), Verdict::Granted { close: Vec::new() });
    }

    #[test]
    fn a_cap_is_close_at_four_fifths() {
        let close = Spend { limit: "agent_spend_7d", used: 80, allowed: 100, session: None };
        let agent = status(Some(100), 80, 0);
        assert_eq!(verdict(&CapStatus::default(), &agent, None), Verdict::Granted { close: vec![close] });
        let agent = status(Some(100), 79, 0);
        assert_eq!(verdict(&CapStatus::default(), &agent, None), Verdict::Granted { close: Vec::new() });
    }

    #[test]
    fn a_balance_is_spent_to_the_last_micro_dollar() {
        assert_eq!(org(None, 0, 4, Some(5)), Verdict::Granted { close: Vec::new() });
        assert_eq!(org(None, 0, 5, Some(5)), Verdict::Wait);
        assert_eq!(org(None, 0, 0, Some(0)), Verdict::BalanceExhausted);
        assert_eq!(org(None, 0, 0, Some(-3)), Verdict::BalanceExhausted);
    }
}
