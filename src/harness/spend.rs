//! What may be spent: asked before a call of the model, and before a tool runs a command.

use super::{
    Halt,
    limits::{self, Trip},
    turn::Run,
};
use crate::{
    base::limit,
    domain::{
        Actor,
        budget::{Budget, Consumed, Most},
        conversation::ModelRequest,
        event::Draft,
        price,
        spend::{Spend, Verdict},
    },
    tool::{Call, CallResult},
};

/// The error of a turn whose cost is limited and whose model has no price.
pub(super) const PRICE_UNKNOWN: &str = "price_unknown";

/// What commands may begin.
pub(super) enum Reserved {
    /// The turn is over, or it is not, and the loop looks again.
    Ended(bool),
    /// Those of so many calls, the first ones.
    First(usize),
}

impl Run<'_> {
    /// Asks whether the call may be paid for. Returns whether the turn is over, when it
    /// may not.
    pub(super) async fn reserve(&mut self, request: &ModelRequest) -> Result<Option<bool>, Halt> {
        let tariff = &self.turn.tariff;
        let most = || {
            // As JSON it is a little longer than in any provider's words.
            let bytes = serde_json::to_vec(request).map_or(0, |json| json.len());
            Most {
                tokens: price::prompt_tokens_max(bytes).saturating_add(request.max_tokens),
                cost_micros: tariff.step_micros_max(bytes, request.max_tokens),
            }
        };
        // A cap may have been set since: only the first call relies on the check before the turn.
        let verdict = self.ports.journal.reserve(&most, self.is_shared(), self.turn.is_unbound).await?;
        self.turn.is_unbound = false;
        self.judged(verdict, Vec::new()).await
    }

    /// Asks the same for the commands of `batch`, one by one, and returns how many of the
    /// calls may begin: where something is reserved for the first ones and the rest would
    /// have to wait, only those. What was asked for and may not be paid is not run; what an
    /// attempt before this one started is stopped.
    pub(super) async fn reserve_execs(&mut self, batch: &[Call]) -> Result<Reserved, Halt> {
        let is_shared = self.is_shared();
        for (place, call) in batch.iter().enumerate() {
            let Some(most) = self.exec_micros_max(call) else { continue };
            let verdict = self.ports.journal.reserve_exec(call.id(), most, is_shared).await?;
            let results = match verdict {
                // What the first ones leave of their reservation is free after them.
                Verdict::Wait if place > 0 => return Ok(Reserved::First(place)),
                Verdict::Granted { .. } | Verdict::Wait => Vec::new(),
                Verdict::Exceeded(_) | Verdict::Unpaid | Verdict::Unpriced => self.stopped().await,
            };
            if let Some(ended) = self.judged(verdict, results).await? {
                return Ok(Reserved::Ended(ended));
            }
        }
        Ok(Reserved::First(batch.len()))
    }

    /// Looks at the limits that the session shares, as they are now.
    pub(super) async fn look_at_budgets(&mut self) -> Result<(), Halt> {
        self.budgets = self.ports.journal.budgets(&self.session).await?;
        let own = self.budgets.iter().find(|budget| budget.session == self.session.id);
        let used = self.session.usage;
        self.tally.below = own.map(|own| own.used).map_or_else(Consumed::default, |all| Consumed {
            tokens: all.tokens.saturating_sub(used.tokens()),
            cost_micros: all.cost_micros.saturating_sub(used.cost.known_micros()),
            tool_calls: all.tool_calls.saturating_sub(used.tool_calls),
        });
        Ok(())
    }

    /// The limit that the session and those above and below it used up together.
    pub(super) fn used_up_together(&self) -> Option<Trip> {
        let spend = self.budgets.iter().find_map(|budget| budget.used_up(0))?;
        Some(limits::spent(spend.seen_from(self.session.id)))
    }

    /// Tokens that one more answer may have under the limits that the session shares.
    pub(super) fn left_together(&self) -> Option<u64> {
        let tariff = &self.turn.tariff;
        let affordable =
            |budget: &Budget| budget.micros_left().and_then(|micros| tariff.output_tokens_for(micros));
        self.budgets.iter().flat_map(|budget| [budget.tokens_left(), affordable(budget)]).flatten().min()
    }

    /// Whether the session shares a limit that calls are reserved something of.
    fn is_shared(&self) -> bool {
        self.budgets.iter().any(Budget::needs_reservation)
    }

    /// Frees what was kept for the commands of `batch`, after their cost was recorded.
    pub(super) async fn release_execs(&self, batch: &[Call]) -> Result<(), Halt> {
        for call in batch.iter().filter(|call| self.exec_micros_max(call).is_some()) {
            self.ports.journal.release_exec(call.id()).await?;
        }
        Ok(())
    }

    /// The most that the command of a call may cost; `None` where that is nothing.
    fn exec_micros_max(&self, call: &Call) -> Option<u64> {
        let longest = call.timeout?;
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
                results.extend(self.result_events(&call, CallResult::not_run(words)));
            } else {
                let ran = self.ports.tools.cancel(&call).await;
                let why = "ended, because what may be spent is used up,";
                results.extend(self.stopped_results(call, ran, why));
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
            Verdict::Exceeded(spend) => {
                self.end_by(limits::spent(spend.seen_from(self.session.id)), before).await?
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
        let warning = |spend: Spend| self.draft(spend.warning(), Actor::system());
        let warnings: Vec<_> = close.into_iter().map(warning).collect();
        if warnings.is_empty() { Ok(()) } else { self.record(warnings).await }
    }

    /// Why a call without a price is not made where something limits what it may cost.
    pub(super) fn no_price(&self, limit: &str) -> String {
        let model = &self.turn.model_name;
        format!("no price list knows {model}, so {limit} cannot be kept; see docs/budgets.md")
    }
}
