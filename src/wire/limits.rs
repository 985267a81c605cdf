//! Limits in requests, including their alternative names.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{present, validate_numbers};
use crate::domain::session::Limits;

/// Limits of a session. A number sets a limit and null removes it; an absent limit is unchanged, or
/// inherited from the agent on creation.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsInput {
    /// Tokens of the whole session: input, cache and output.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub tokens: Option<Option<u64>>,
    /// Wall-clock time of one turn, in seconds.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub turn_seconds: Option<Option<u64>>,
    /// Number of turns of the session.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub turns: Option<Option<u64>>,
    /// Model calls within one turn (default 200).
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub steps: Option<Option<u64>>,
    /// Cost of the whole session, in micro-USD.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub cost_micros: Option<Option<u64>>,
    /// Same limit as `cost_micros`, in cents. Mutually exclusive with `cost_micros`.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub cost_cap_cents: Option<Option<u64>>,
    /// Time of the whole session, in seconds: sum of its turns and of callers' commands.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub duration_seconds: Option<Option<u64>>,
    /// Tool calls of the whole session.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub tool_calls: Option<Option<u64>>,
    /// Alias of `tool_calls`. Mutually exclusive with `tool_calls`.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub iterations: Option<Option<u64>>,
}

const MICROS_OF_CENT: u64 = 10_000;

impl LimitsInput {
    /// Applies these changes to the current limits.
    pub(crate) fn over(self, before: Limits) -> Limits {
        let micros = |cents: u64| cents.saturating_mul(MICROS_OF_CENT);
        let cost = self.cost_micros.or(self.cost_cap_cents.map(|cents| cents.map(micros)));
        Limits {
            tokens: self.tokens.unwrap_or(before.tokens),
            turn_seconds: self.turn_seconds.unwrap_or(before.turn_seconds),
            turns: self.turns.unwrap_or(before.turns),
            steps: self.steps.unwrap_or(before.steps),
            cost_micros: cost.unwrap_or(before.cost_micros),
            duration_seconds: self.duration_seconds.unwrap_or(before.duration_seconds),
            tool_calls: self.tool_calls.or(self.iterations).unwrap_or(before.tool_calls),
        }
    }
}

impl From<Limits> for LimitsInput {
    fn from(limits: Limits) -> Self {
        Self {
            tokens: limits.tokens.map(Some),
            turn_seconds: limits.turn_seconds.map(Some),
            turns: limits.turns.map(Some),
            steps: limits.steps.map(Some),
            cost_micros: limits.cost_micros.map(Some),
            cost_cap_cents: None,
            duration_seconds: limits.duration_seconds.map(Some),
            tool_calls: limits.tool_calls.map(Some),
            iterations: None,
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
            let error = garde::Error::new(format!("is set twice: send `{one}` or `{other}`"));
            report.append(parent().join(other), error);
        }
        if self.cost_cap_cents.flatten().is_some_and(|cents| cents > i64::MAX as u64 / MICROS_OF_CENT) {
            report.append(parent().join("cost_cap_cents"), garde::Error::new("is too large"));
        }
        if let Err(error) = validate_numbers(self, context) {
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
        let before = Limits { tokens: Some(100), steps: Some(5), ..Limits::default() };
        Ok(input.over(before))
    }

    #[test]
    fn a_number_sets_a_limit_null_removes_it_and_what_is_absent_stays() {
        let changed = limits(r#"{"tokens": null, "turns": 3, "cost_cap_cents": null}"#).expect("limits");
        assert_eq!(changed, Limits { turns: Some(3), steps: Some(5), ..Limits::default() });
        assert_eq!(limits("{}").expect("limits").tokens, Some(100));
    }

    #[test]
    fn both_names_of_a_limit_are_known_and_never_together() {
        let by_other = limits(r#"{"cost_cap_cents": 25, "iterations": 7}"#).expect("limits");
        assert_eq!((by_other.cost_micros, by_other.tool_calls), (Some(250_000), Some(7)));
        for (twice, field) in [
            (r#"{"cost_micros": 1, "cost_cap_cents": 1}"#, "cost_cap_cents"),
            (r#"{"tool_calls": null, "iterations": 1}"#, "iterations"),
            (r#"{"cost_cap_cents": 9000000000000000}"#, "cost_cap_cents"),
            (r#"{"duration_seconds": 9300000000000000000}"#, "above"),
            (r#"{"dollars": 1}"#, "dollars"),
        ] {
            let error = limits(twice).expect_err(twice);
            assert!(error.contains(field), "{twice}: {error}");
        }
    }
}
