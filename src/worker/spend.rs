//! What callers' commands may spend: promised before one begins, turned into cost when it
//! is over; limits that it brings close or uses up are told in the log.
//!
//! Called by `operate`. A command of a turn is the harness's to ask for.

use super::operate::{Operator, Stopped};
use crate::{
    base::limit::SPEND_WAIT,
    domain::{
        Actor, Body, Cost,
        operation::{self, Failure, Request},
        spend::{Spend, Verdict},
    },
    journal,
    store::operation::Open,
};

impl Operator<'_> {
    /// Promises the most that a command may cost. Returns why it may not be run, if so;
    /// where all that is left is promised to others, waits for them.
    pub(super) async fn reserve(&self, open: &Open) -> Result<Option<(Failure, String)>, Stopped> {
        let Request::Exec { timeout_seconds, .. } = &open.request else { return Ok(None) };
        let (tenant, agent) = (self.writer.fence().tenant, self.session.created.agent_id);
        let store = &self.worker.store;
        // One that has begun is promised for too, whoever asked for it.
        let has_begun = open.sandbox.is_some();
        if !store.account(tenant, agent).await?.is_bound {
            return Ok(None);
        }
        let most = self.tariff.exec(self.size, timeout_seconds.saturating_mul(1_000)).known_micros();
        let call = open.id.to_string();
        loop {
            let refused = match self.writer.reserve(agent, Some(&call), Some(most)).await? {
                Verdict::Granted { close } => {
                    self.promised.lock().await.insert(open.id);
                    for spend in close {
                        self.say(Actor::system(), warning(spend)).await?;
                    }
                    return Ok(None);
                }
                _ if has_begun => return Ok(None),
                // What is free takes nothing of what is promised to others.
                Verdict::Wait if most == 0 => return Ok(None),
                Verdict::Wait => {
                    tokio::time::sleep(SPEND_WAIT).await;
                    continue;
                }
                Verdict::Exceeded(spend) => {
                    self.say_exceeded().await?;
                    (Failure::BudgetExceeded, format!("{}: all of it is spent", spend.limit))
                }
                Verdict::Unpaid => {
                    (Failure::PaymentRequired, "the organization's balance is used up".to_owned())
                }
                Verdict::Unpriced => unreachable!("what a command may cost is always known"),
            };
            return Ok(Some(refused));
        }
    }

    /// After the end of a command is in the log: what was promised to it is free, and what
    /// it brought close or used up is told.
    pub(super) async fn spent(&self, open: &Open, cost: Cost) -> Result<(), Stopped> {
        let away = |error: journal::Error| Stopped::Away(error.to_string());
        // Two commands that end together would both find that nobody has told yet.
        let mut promised = self.promised.lock().await;
        if promised.remove(&open.id) {
            self.writer.release_exec(&open.id.to_string()).await.map_err(away)?;
        }
        let session = self.writer.session().await.map_err(away)?;
        for (limit, used, allowed) in operation::close(&session) {
            let said = |body: &Body| *body == warning(Spend { limit, used: used_of(body), allowed });
            if !self.has_said(said).await? {
                self.say(Actor::system(), warning(Spend { limit, used, allowed })).await?;
            }
        }
        if let Some((limit, used, allowed)) = operation::used_up(&session) {
            let said = |body: &Body| *body == exceeded(Spend { limit, used: used_of(body), allowed });
            if !self.has_said(said).await? {
                self.say(Actor::system(), exceeded(Spend { limit, used, allowed })).await?;
            }
        }
        if cost.known_micros() > 0 { self.say_exceeded().await } else { Ok(()) }
    }

    /// Says that a cap is spent, where nobody in the organization has said so.
    async fn say_exceeded(&self) -> Result<(), Stopped> {
        let (tenant, agent) = (self.writer.fence().tenant, self.session.created.agent_id);
        let store = &self.worker.store;
        if store.account(tenant, agent).await?.is_bound
            && let Some(spend) = store.newly_exceeded(tenant, agent).await?
        {
            self.say(Actor::system(), exceeded(spend)).await?;
        }
        Ok(())
    }
}

/// What an event about a limit says was used.
fn used_of(body: &Body) -> u64 {
    match body {
        Body::LimitWarning { used, .. } | Body::LimitExceeded { used, .. } => *used,
        _ => 0,
    }
}

fn warning(Spend { limit, used, allowed }: Spend) -> Body {
    Body::LimitWarning { limit: limit.to_owned(), used, allowed }
}

fn exceeded(Spend { limit, used, allowed }: Spend) -> Body {
    Body::LimitExceeded { limit: limit.to_owned(), used, allowed }
}
