//! Checks before a turn starts, so that nothing is provisioned for a turn that may not run.
//!
//! A failed check rejects the session: an event with the reason, the canceled turn, no sandbox. A turn
//! that another worker started is not checked again.

use super::unavailable;
use crate::{
    domain::{
        OrgId, Session,
        price::PriceList,
        spend::{Spend, Verdict, verdict},
    },
    harness::Halt,
    store::{Store, billing::Billing},
};

/// Reason why a turn cannot run.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Stable code, such as `agent_disabled`.
    pub code: &'static str,
    pub message: String,
    /// The exceeded spend cap: the turn ends with `budget_exceeded`, not with an error.
    pub spend: Option<Spend>,
    /// A check before the turn failed: the turn is canceled, not failed.
    pub rejects: bool,
}

impl Refusal {
    /// A turn that cannot run; it ends with this error.
    pub(crate) fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), spend: None, rejects: false }
    }

    /// A check before the turn failed.
    pub(super) fn rejected(code: &'static str, message: impl Into<String>) -> Self {
        Self { rejects: true, ..Self::error(code, message) }
    }
}

/// Result of the checks: the price list, and whether spend limits apply.
pub(super) struct Checked {
    pub prices: Option<PriceList>,
    /// No spend cap and no balance applies.
    pub is_unbound: bool,
}

/// Checks the billing row, and the spend limits if the turn has not started yet.
pub(super) async fn check(
    store: &Store,
    org: OrgId,
    session: &Session,
) -> Result<Result<Checked, Refusal>, Halt> {
    let agent = session.created.agent_id;
    let billing: Billing = store.billing(org, agent).await.map_err(unavailable)?;
    let starts = session.running.is_none();
    if starts && billing.is_suspended {
        let words = "the organization is suspended; retry the turn after it is resumed";
        return Ok(Err(Refusal::rejected("organization_suspended", words)));
    }
    if starts && !billing.agent_enabled {
        let words = "the agent is disabled; PATCH it with enabled: true, then retry the turn";
        return Ok(Err(Refusal::rejected("agent_disabled", words)));
    }
    let checked = Checked { is_unbound: !billing.is_bound, prices: billing.prices };
    if !starts || checked.is_unbound {
        return Ok(Ok(checked));
    }
    let now = store.spend_status_of(org, agent).await.map_err(unavailable)?;
    Ok(match verdict(&now.organization, &now.agent, now.balance) {
        Verdict::Exceeded(spend) => {
            let Spend { limit, used, allowed, .. } = spend;
            let words = format!("{limit}: {used} of {allowed} micro-USD are spent; raise the cap or wait");
            Err(Refusal { spend: Some(spend), ..Refusal::rejected("spend_cap_exceeded", words) })
        }
        Verdict::BalanceExhausted => {
            let words = "the organization's balance is used up; top it up, then retry the turn";
            Err(Refusal::rejected("payment_required", words))
        }
        // Each call reserves its maximum cost before it starts.
        Verdict::Granted { .. } | Verdict::Wait | Verdict::Unpriced => Ok(checked),
    })
}
