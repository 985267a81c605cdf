//! Spend of callers' commands: reserved before the start, billed at the end.
//!
//! Called by `operation`. Limits that are nearly or fully used are recorded in the log. The harness reserves
//! for commands of a turn.

use std::time::Instant;

use super::{Error, OperationServer, killed_in_queue};
use crate::{
    base::limit::SPEND_WAIT,
    domain::{
        Actor, Body, Cost, OperationId,
        budget::{Budget, MaxUsage},
        operation::{self, Failure, Request},
        spend::{Spend, Verdict},
    },
    journal,
    store::{operation::Open, reservation::Ask},
};

impl OperationServer<'_> {
    /// Reserves the maximum cost of a command. Returns the refusal if it may not run. Waits while the rest
    /// of a limit is reserved for others.
    pub(crate) async fn reserve(&self, open: &Open) -> Result<Option<(Failure, String)>, Error> {
        let Request::Exec { timeout_seconds, .. } = &open.request else { return Ok(None) };
        let (org, agent) = (self.writer.fence().org, self.session.created.agent_id);
        let store = &self.sandboxes.store;
        // A command that has started gets a reservation too, but is not refused.
        let has_begun = open.sandbox.is_some();
        let (billing, budgets) =
            tokio::join!(store.billing(org, agent), store.budgets_of(org, self.session.id));
        let is_bound = billing?.is_bound;
        let is_shared = budgets?.iter().any(Budget::needs_reservation);
        if !is_bound && !is_shared {
            return Ok(None);
        }
        let most = self.tariff.exec(self.size, timeout_seconds.saturating_mul(1_000)).known_micros();
        let call = open.id.to_string();
        let wanted = MaxUsage { tokens: 0, cost_micros: Some(most) };
        let ask = Ask { agent, call: Some(&call), most: wanted, is_bound, is_shared };
        loop {
            let refused = match self.writer.reserve(&ask).await? {
                Verdict::Granted { close } => {
                    self.reserved.lock().await.insert(open.id);
                    for spend in close {
                        self.record(Actor::system(), spend.warning()).await?;
                    }
                    return Ok(None);
                }
                _ if has_begun => return Ok(None),
                // A command that costs nothing needs no part of the limit.
                Verdict::Wait if most == 0 => return Ok(None),
                Verdict::Wait => {
                    tokio::time::sleep(SPEND_WAIT).await;
                    // A command that was killed meanwhile gives its place to the next one.
                    if self.has_ended_in_queue(open.id).await? {
                        return Ok(Some(killed_in_queue()));
                    }
                    continue;
                }
                Verdict::Exceeded(spend) => {
                    self.record_exceeded().await?;
                    let whose = spend.session.map_or_else(String::new, |session| format!(" of {session}"));
                    (Failure::BudgetExceeded, format!("{}{whose}: all of it is spent", spend.limit))
                }
                Verdict::BalanceExhausted => {
                    (Failure::PaymentRequired, "the organization's balance is used up".to_owned())
                }
                Verdict::Unpriced => unreachable!("the maximum cost of a command is always known"),
            };
            return Ok(Some(refused));
        }
    }

    /// Releases the reservation of a command whose end is in the log, and records limits that it nearly or
    /// fully used.
    pub(crate) async fn spent(&self, exec: OperationId, cost: Cost) -> Result<(), Error> {
        let away = |error: journal::Error| Error::Unavailable(error.to_string());
        // Two commands that end together would both find no record of the limit yet.
        let mut reserved = self.reserved.lock().await;
        if reserved.remove(&exec) {
            self.writer.release_exec(&exec.to_string()).await.map_err(away)?;
        }
        let session = self.writer.session().await.map_err(away)?;
        let own = |(limit, used, allowed)| Spend { limit, used, allowed, session: None };
        for spend in operation::close(&session).map(own) {
            self.record_once(spend, Spend::warning).await?;
        }
        if let Some(spend) = operation::used_up(&session).map(own) {
            self.record_once(spend, Spend::exceeded).await?;
        }
        self.spent_together().await?;
        if cost.known_micros() > 0 { self.record_exceeded().await } else { Ok(()) }
    }

    /// Records the limits that the session shares with its parent and child sessions.
    async fn spent_together(&self) -> Result<(), Error> {
        let (org, store) = (self.writer.fence().org, &self.sandboxes.store);
        let budgets = store.budgets_of(org, self.session.id).await?;
        for spend in budgets.iter().flat_map(Budget::close) {
            let seen = spend.seen_from(self.session.id);
            // Of all sessions below a parent, only the first one warns of its limit.
            if seen.session.is_none() || store.is_first_warning(org, &spend).await? {
                self.record_once(seen, Spend::warning).await?;
            }
        }
        for spend in budgets.iter().filter_map(|budget| budget.used_up(1)) {
            self.record_once(spend.seen_from(self.session.id), Spend::exceeded).await?;
        }
        Ok(())
    }

    /// Records an event about a limit, unless the log contains it already.
    async fn record_once(&self, spend: Spend, words: fn(Spend) -> Body) -> Result<(), Error> {
        let said = |body: &Body| *body == words(Spend { used: used_of(body), ..spend });
        match self.is_recorded(words(spend).type_name(), said).await? {
            true => Ok(()),
            false => self.record(Actor::system(), words(spend)).await,
        }
    }

    /// Bills running commands if the session was closed under this lease: they end with their sandbox, and
    /// the log accepts no more events.
    pub(crate) async fn bill_late(&self) {
        let begun = std::mem::take(&mut *self.running.lock().await);
        let exec = |(id, began): (OperationId, Instant)| {
            let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let cost = self.tariff.exec(self.size, duration_ms);
            self.draft(
                Actor::system(),
                Body::ExecCompleted {
                    call_id: id.to_string(),
                    exec_id: Some(id),
                    command: String::new(),
                    exit_code: -1,
                    summary: String::new(),
                    bytes: 0,
                    cause: "killed".to_owned(),
                    duration_ms,
                    cpu_micros: cost.sandbox_cpu_micros,
                    memory_micros: cost.sandbox_memory_micros,
                },
            )
        };
        let ran: Vec<_> = begun.into_iter().map(exec).collect();
        if !ran.is_empty()
            && let Err(error) = self.writer.bill_late(&ran).await
        {
            tracing::warn!(session.id = %self.session.id, %error, "commands of a closed session could not be billed");
        }
    }

    /// Records that a spend cap is exceeded, if no session of the organization has recorded it.
    async fn record_exceeded(&self) -> Result<(), Error> {
        let (org, agent) = (self.writer.fence().org, self.session.created.agent_id);
        let store = &self.sandboxes.store;
        if store.billing(org, agent).await?.is_bound
            && let Some(spend) = store.newly_exceeded(org, agent).await?
        {
            self.record(Actor::system(), spend.exceeded()).await?;
        }
        Ok(())
    }
}

/// Usage in an event about a limit.
fn used_of(body: &Body) -> u64 {
    match body {
        Body::LimitWarning { used, .. } | Body::LimitExceeded { used, .. } => *used,
        _ => 0,
    }
}
