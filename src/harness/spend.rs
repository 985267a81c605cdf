//! Reservation of money before a model call, and before a tool runs a command.

use super::{
    Halt,
    limits::{self, ExceededLimit},
    turn::Run,
};
use crate::{
    base::limit,
    domain::{
        Actor,
        budget::{Budget, Consumed, MaxUsage},
        conversation::ModelRequest,
        event::Draft,
        price, shown_files,
        spend::{Spend, Verdict},
    },
    tool::Call,
};

/// Error code of a turn whose cost is limited and whose model has no price.
pub(super) const PRICE_UNKNOWN: &str = "price_unknown";

/// Result of reserving money for commands.
pub(super) enum Reserved {
    /// The commands were not granted; the value is whether the turn ended.
    Ended(bool),
    /// The commands of the first n calls were granted.
    First(usize),
}

impl Run<'_> {
    /// Reserves money for a model call. If the call is refused, returns whether the turn ended.
    pub(super) async fn reserve(&mut self, request: &ModelRequest) -> Result<Option<bool>, Halt> {
        let tariff = &self.model().tariff;
        let most = || {
            // The JSON is slightly longer than the prompt in any provider's encoding.
            let json = serde_json::to_vec(request).map_or(0, |json| json.len());
            let bytes = json + shown_files::prompt_bytes(request);
            MaxUsage {
                tokens: price::prompt_tokens_max(bytes).saturating_add(request.max_tokens),
                cost_micros: tariff.step_micros_max(bytes, request.max_tokens),
            }
        };
        // A cap may have been set since: only the first call relies on the check before the turn.
        let verdict = self.ports.journal.reserve(&most, self.is_shared(), self.turn.is_unbound).await?;
        self.turn.is_unbound = false;
        let is_refused =
            matches!(verdict, Verdict::Exceeded(_) | Verdict::BalanceExhausted | Verdict::Unpriced);
        let failures = 1 + self.own().map_or(0, |own| own.model_failures);
        // The next model may cost less, or have a price.
        if is_refused
            && self.is_fallback()
            && let Some(delay) = self.retry_delay(failures)
        {
            let model = self.model().full_name();
            let message = format!("a call of {model} may exceed a spend limit, or its price is not known");
            return self.record_failure("payment_required", message, Some(delay), None).await.map(Some);
        }
        self.apply_verdict(verdict, Vec::new()).await
    }

    /// Reserves money for the commands of `batch`, one by one.
    ///
    /// Returns the number of calls that may start: if the first ones have a reservation and the
    /// rest would have to wait, only the first ones. If a command is refused, its call is not run,
    /// and commands that an earlier attempt started are stopped.
    pub(super) async fn reserve_execs(&mut self, batch: &[Call]) -> Result<Reserved, Halt> {
        let is_shared = self.is_shared();
        for (place, call) in batch.iter().enumerate() {
            let Some(most) = self.exec_micros_max(call) else { continue };
            let verdict = self.ports.journal.reserve_exec(call.id(), most, is_shared).await?;
            let results = match verdict {
                // The rest of their reservation is free once the first ones have ended.
                Verdict::Wait if place > 0 => return Ok(Reserved::First(place)),
                Verdict::Granted { .. } | Verdict::Wait => Vec::new(),
                Verdict::Exceeded(_) | Verdict::BalanceExhausted | Verdict::Unpriced => self.stopped().await,
            };
            if let Some(ended) = self.apply_verdict(verdict, results).await? {
                return Ok(Reserved::Ended(ended));
            }
        }
        Ok(Reserved::First(batch.len()))
    }

    /// Re-reads the limits that the session shares.
    pub(super) async fn refresh_budgets(&mut self) -> Result<(), Halt> {
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

    /// Returns the limit that the session, its ancestors and descendants used up together.
    pub(super) fn shared_limit_used_up(&self) -> Option<ExceededLimit> {
        let spend = self.budgets.iter().find_map(|budget| budget.used_up(0))?;
        Some(limits::spent(spend.seen_from(self.session.id)))
    }

    /// Returns the max output tokens of one more response under the shared limits.
    pub(super) fn shared_tokens_left(&self) -> Option<u64> {
        let tariff = &self.model().tariff;
        let affordable =
            |budget: &Budget| budget.micros_left().and_then(|micros| tariff.output_tokens_for(micros));
        self.budgets.iter().flat_map(|budget| [budget.tokens_left(), affordable(budget)]).flatten().min()
    }

    /// Returns whether the session shares a limit that needs reservations.
    fn is_shared(&self) -> bool {
        self.budgets.iter().any(Budget::needs_reservation)
    }

    /// Releases the reservations for the commands of `batch`, after their cost was recorded.
    pub(super) async fn release_execs(&self, batch: &[Call]) -> Result<(), Halt> {
        for call in batch.iter().filter(|call| self.exec_micros_max(call).is_some()) {
            self.ports.journal.release_exec(call.id()).await?;
        }
        Ok(())
    }

    /// Returns the max cost of a call's command in micro-USD; `None` if it is zero.
    fn exec_micros_max(&self, call: &Call) -> Option<u64> {
        let longest = call.timeout?;
        let ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let most = self.model().tariff.exec(self.turn.size, ms).known_micros();
        (most > 0).then_some(most)
    }

    /// Stops all open calls and returns their results.
    async fn stopped(&mut self) -> Vec<Draft> {
        let open = self.fold.open_calls(self.turn.id);
        let mut results = Vec::new();
        for call in open {
            if self.fresh.contains(&call.call_id) && !self.has_elicited(&call) {
                let done = self.not_run(&call, "This tool did not run: the spend limit is used up.");
                results.extend(self.result_events(&call, done));
            } else {
                let ran = self.ports.tools.cancel(&call).await;
                let why = "ended because the spend limit is used up";
                results.extend(self.stopped_results(&call, ran.as_ref(), why));
            }
        }
        results
    }

    /// Continues, waits, or ends the turn after the events `before`.
    async fn apply_verdict(&mut self, verdict: Verdict, before: Vec<Draft>) -> Result<Option<bool>, Halt> {
        let ended = match verdict {
            Verdict::Granted { close } => {
                self.warn_of_spend(close).await?;
                return Ok(None);
            }
            Verdict::Wait => return Err(Halt::Wait(limit::SPEND_WAIT)),
            Verdict::Exceeded(spend) => {
                self.end_by(limits::spent(spend.seen_from(self.session.id)), before).await?
            }
            Verdict::BalanceExhausted => {
                let words = "the organization's balance is used up; top it up, then retry the turn";
                self.fail("payment_required", words.to_owned(), before).await?
            }
            Verdict::Unpriced => self.fail(PRICE_UNKNOWN, self.no_price("the spend limit"), before).await?,
        };
        Ok(Some(ended))
    }

    /// Appends warnings for caps that are close; the journal knows which were appended before.
    async fn warn_of_spend(&mut self, close: Vec<Spend>) -> Result<(), Halt> {
        let warning = |spend: Spend| self.draft(spend.warning(), Actor::system());
        let warnings: Vec<_> = close.into_iter().map(warning).collect();
        if warnings.is_empty() { Ok(()) } else { self.record(warnings).await }
    }

    /// Returns the error message for a model without a price when a limit on cost applies.
    pub(super) fn no_price(&self, limit: &str) -> String {
        let model = &self.model().name;
        format!("no price list contains {model}, so {limit} cannot be enforced; see docs/budgets.md")
    }
}
