//! The model of a turn's next call: the one of its agent, or a fallback model while that is not available.

use std::time::Duration;

use super::turn::{Run, TurnModel};
use crate::{
    base::{backoff::Backoff, limit},
    domain::fallback,
};

const BACKOFF: Backoff = Backoff { first: limit::MODEL_BACKOFF.0, longest: limit::MODEL_BACKOFF.1 };

impl Run<'_> {
    /// Returns the model of the next call: the one that answered last in this turn, or a later one for each failure
    /// since.
    pub(super) fn model(&self) -> &TurnModel {
        self.model_after(self.own().map_or(0, |own| own.model_failures))
    }

    /// Returns whether the next call is one of a fallback model.
    pub(super) fn is_fallback(&self) -> bool {
        !std::ptr::eq(self.model(), &raw const self.turn.models[0])
    }

    /// Notes that the model of the call that has just failed asked not to be called again for this time.
    pub(super) fn note_retry_after(&mut self, retry_after: Duration) {
        let name = self.model().full_name();
        self.not_before.retain(|(known, _)| *known != name);
        self.not_before.push((name, self.ports.origin.now() + retry_after));
    }

    /// Returns the time until the next call after this many failures in a row: none for a model that has not been
    /// called since, unless it asked for one. `None` when each has failed `MODEL_ATTEMPTS_MAX` times.
    pub(super) fn retry_delay(&self, failures: u32) -> Option<Duration> {
        let models = u32::try_from(self.callable_models().len()).unwrap_or(1);
        if failures >= limit::MODEL_ATTEMPTS_MAX * models {
            return None;
        }
        let delay = match failures.is_multiple_of(models) {
            true => BACKOFF.delay(failures / models, self.ports.origin),
            false => Duration::ZERO,
        };
        let next = self.model_after(failures).full_name();
        let asked = self.not_before.iter().find(|(name, _)| *name == next);
        let asked = asked.map(|(_, at)| (*at - self.ports.origin.now()).try_into().unwrap_or_default());
        Some(delay.max(asked.unwrap_or_default()))
    }

    fn model_after(&self, failures: u32) -> &TurnModel {
        let models = self.callable_models();
        let last = self.own().and_then(|own| own.model.as_deref());
        let is_last = |model: &&TurnModel| last == Some(&*model.full_name());
        let last = models.iter().position(is_last).unwrap_or_default();
        models[fallback::index(last, failures, models.len())]
    }

    /// The model of the agent, and those fallback models that the history fits without a summary, and that have a price
    /// if a limit on cost applies.
    fn callable_models(&self) -> Vec<&TurnModel> {
        let tokens = self.fold.conversation().tokens() as f64;
        let threshold = self.turn.compaction.threshold();
        let limits_cost = self.session.created.limits.cost_micros.is_some()
            || self.budgets.iter().any(|budget| budget.micros_left().is_some());
        let fits = |model: &TurnModel| {
            let wanted = model.options.max_tokens.unwrap_or(limit::MODEL_MAX_TOKENS_DEFAULT);
            model.window.is_none_or(|window| {
                tokens <= window.saturating_sub(wanted).max(window / 4) as f64 * threshold
            })
        };
        let is_callable = |model: &&TurnModel| fits(model) && (!limits_cost || model.tariff.model.is_some());
        let (first, others) = self.turn.models.split_first().expect("a turn has a model");
        std::iter::once(first).chain(others.iter().filter(is_callable)).collect()
    }
}
