//! Limits as a caller sends them: with the other names that they are known by.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::countable;
use crate::domain::session::Limits;

/// Caps of a session; an absent one does not bind, or stays as it is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsInput {
    /// Tokens of the whole session: input, cache and output.
    pub tokens: Option<u64>,
    /// Wall clock of one turn, in seconds.
    pub turn_seconds: Option<u64>,
    /// Turns that the session may run.
    pub turns: Option<u64>,
    /// Model calls within one turn (default 200).
    pub steps: Option<u64>,
    /// Cost of the whole session, in micro-USD.
    pub cost_micros: Option<u64>,
    /// The same in cents. Not with `cost_micros`.
    pub cost_cap_cents: Option<u64>,
    /// Seconds in which turns are worked on, in the whole session.
    pub duration_seconds: Option<u64>,
    /// Tool calls of the whole session.
    pub tool_calls: Option<u64>,
    /// The same under another name. Not with `tool_calls`.
    pub iterations: Option<u64>,
}

const MICROS_OF_CENT: u64 = 10_000;

impl From<LimitsInput> for Limits {
    fn from(input: LimitsInput) -> Self {
        let cents = input.cost_cap_cents.map(|cents| cents.saturating_mul(MICROS_OF_CENT));
        Self {
            tokens: input.tokens,
            turn_seconds: input.turn_seconds,
            turns: input.turns,
            steps: input.steps,
            cost_micros: input.cost_micros.or(cents),
            duration_seconds: input.duration_seconds,
            tool_calls: input.tool_calls.or(input.iterations),
        }
    }
}

impl Validate for LimitsInput {
    type Context = ();

    fn validate_into(
        &self,
        context: &Self::Context,
        parent: &mut dyn FnMut() -> garde::Path,
        report: &mut garde::Report,
    ) {
        let twice = [
            (self.cost_micros.is_some() && self.cost_cap_cents.is_some(), "cost_micros", "cost_cap_cents"),
            (self.tool_calls.is_some() && self.iterations.is_some(), "tool_calls", "iterations"),
        ];
        for (_, one, other) in twice.into_iter().filter(|(is_twice, ..)| *is_twice) {
            let error = garde::Error::new(format!("is named twice: send `{one}` or `{other}`"));
            report.append(parent().join(other), error);
        }
        if self.cost_cap_cents.is_some_and(|cents| cents > i64::MAX as u64 / MICROS_OF_CENT) {
            report.append(parent().join("cost_cap_cents"), garde::Error::new("is more than can be counted"));
        }
        if let Err(error) = countable(self, context) {
            report.append(parent(), error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(json: &str) -> Result<Limits, String> {
        let input: LimitsInput = serde_json::from_str(json).map_err(|error| error.to_string())?;
        input.validate().map_err(|report| report.to_string())?;
        Ok(input.into())
    }

    #[test]
    fn both_names_of_a_limit_are_known_and_never_together() {
        let by_other = limits(r#"{"cost_cap_cents": 25, "iterations": 7}"#).expect("limits");
        assert_eq!((by_other.cost_micros, by_other.tool_calls), (Some(250_000), Some(7)));
        for (twice, field) in [
            (r#"{"cost_micros": 1, "cost_cap_cents": 1}"#, "cost_cap_cents"),
            (r#"{"tool_calls": 1, "iterations": 1}"#, "iterations"),
            (r#"{"cost_cap_cents": 9000000000000000}"#, "cost_cap_cents"),
            (r#"{"duration_seconds": 9300000000000000000}"#, "above"),
            (r#"{"dollars": 1}"#, "dollars"),
        ] {
            let error = limits(twice).expect_err(twice);
            assert!(error.contains(field), "{twice}: {error}");
        }
    }
}
