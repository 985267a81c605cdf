//! What may be spent: asked before a call of the model, and before a tool runs a command.

use super::{Halt, limits, tools::not_run, turn::Run};
use crate::{
    base::limit,
    domain::{
        Actor,
        conversation::ModelRequest,
        event::{Body, Draft},
        spend::{Spend, Verdict},
        tool::ToolCall,
    },
};

/// The error of a turn whose cost is limited and whose model has no price.
pub(super) const PRICE_UNKNOWN: &str = "price_unknown";

impl Run<'_> {
    /// Asks whether the call may be paid for. Returns whether the turn is over, when it
    /// may not.
    pub(super) async fn reserve(&mut self, request: &ModelRequest) -> Result<Option<bool>, Halt> {
        let tariff = &self.turn.tariff;
        // As JSON it is a little longer than in any provider's words.
        let most = || tariff.step_micros_max(serde_json::to_vec(request).ok()?.len(), request.max_tokens);
        let verdict = self.ports.journal.reserve(&most).await?;
        self.judged(verdict, Vec::new()).await
    }

    /// Asks the same for the commands of `batch`, one by one. What was asked for and may
    /// not be paid is not run; what an attempt before this one started is stopped.
    pub(super) async fn reserve_execs(&mut self, batch: &[ToolCall]) -> Result<Option<bool>, Halt> {
        for call in batch {
            let Some(most) = self.exec_micros_max(call) else { continue };
            let verdict = self.ports.journal.reserve_exec(&call.call_id, most).await?;
            let results = match verdict {
                Verdict::Granted { .. } | Verdict::Wait => Vec::new(),
                Verdict::Exceeded(_) | Verdict::Unpaid | Verdict::Unpriced => self.stopped().await,
            };
            if let Some(ended) = self.judged(verdict, results).await? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }

    /// Frees what was kept for the commands of `batch`, after their cost was recorded.
    pub(super) async fn release_execs(&self, batch: &[ToolCall]) -> Result<(), Halt> {
        for call in batch.iter().filter(|call| self.exec_micros_max(call).is_some()) {
            self.ports.journal.release_exec(&call.call_id).await?;
        }
        Ok(())
    }

    /// The most that the command of a call may cost; `None` where that is nothing.
    fn exec_micros_max(&self, call: &ToolCall) -> Option<u64> {
        let longest = self.ports.tools.longest(call)?;
        let ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let most = self.turn.tariff.exec(self.turn.size, ms).known_micros();
        (most > 0).then_some(most)
    }

    /// Results for the calls that are open, none of which goes on.
    async fn stopped(&mut self) -> Vec<Draft> {
        let open = super::history::open_calls(&self.log, self.turn.id);
        let mut results = Vec::new();
        for call in open {
            if self.fresh.contains(&call.call_id) {
                let words = "This tool did not run: what may be spent is used up.".to_owned();
                results.extend(self.result_events(&call, not_run(words)));
            } else {
                self.ports.tools.cancel(&call).await;
                results.push(self.stopped_result(call, "ended, because what may be spent is used up,"));
            }
        }
        results
    }

    /// Goes on, waits, or ends the turn after the events `before`.
    async fn judged(&mut self, verdict: Verdict, before: Vec<Draft>) -> Result<Option<bool>, Halt> {
        let ended = match verdict {
            Verdict::Granted { close } => {
                self.warn_of_spend(close).await?;
                return Ok(None);
            }
            Verdict::Wait => return Err(Halt::Wait(limit::SPEND_WAIT)),
            Verdict::Exceeded(Spend { limit, used, allowed }) => {
                self.end_by(limits::budget(limit, used, allowed), before).await?
            }
            Verdict::Unpaid => {
                let words = "the organization's balance is used up; top it up and steer the session";
                self.fail("payment_required", words.to_owned(), before).await?
            }
            Verdict::Unpriced => self.fail(PRICE_UNKNOWN, self.no_price("what may be spent"), before).await?,
        };
        Ok(Some(ended))
    }

    /// Says that caps are close. Which have been told of, whoever granted the call knows.
    async fn warn_of_spend(&mut self, close: Vec<Spend>) -> Result<(), Halt> {
        let warning = |spend: Spend| {
            let Spend { limit, used, allowed } = spend;
            self.draft(Body::LimitWarning { limit: limit.to_owned(), used, allowed }, Actor::system())
        };
        let warnings: Vec<_> = close.into_iter().map(warning).collect();
        if warnings.is_empty() { Ok(()) } else { self.record(warnings).await }
    }

    /// Why a call without a price is not made where something limits what it may cost.
    pub(super) fn no_price(&self, limit: &str) -> String {
        let model = &self.turn.model_name;
        format!("no price list knows {model}, so {limit} cannot be kept; see docs/budgets.md")
    }
}
