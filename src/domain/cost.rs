//! Cost of work, in whole micro-USD (a millionth of a dollar).
//!
//! Stored in parts, so that a bill can be itemized. A model call without a known price is counted
//! as unpriced. The total of a cost with an unpriced call is null instead of too low.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A cost by parts. All parts start at zero and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Shape", into = "Shape")]
pub struct Cost {
    pub model_micros: u64,
    pub sandbox_cpu_micros: u64,
    pub sandbox_memory_micros: u64,
    pub fee_micros: u64,
    pub unpriced_steps: u64,
}

/// A cost by parts, with the total.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Cost)]
#[serde(default)]
pub struct Shape {
    /// Sum of the parts in micro-USD; null when a model call had no known price.
    #[schema(required)]
    total_micros: Option<u64>,
    /// Tokens of the model calls with a known price.
    model_micros: u64,
    /// CPU time of the sandbox while commands ran.
    sandbox_cpu_micros: u64,
    /// Memory of the sandbox while commands ran.
    sandbox_memory_micros: u64,
    /// The operator's fee per turn.
    fee_micros: u64,
    /// Number of model calls without a known price.
    unpriced_steps: u64,
}

impl Cost {
    /// Returns the cost of one model call; `None` means that its price is unknown.
    pub fn of_step(micros: Option<u64>) -> Self {
        let unpriced_steps = u64::from(micros.is_none());
        Self { model_micros: micros.unwrap_or_default(), unpriced_steps, ..Self::default() }
    }

    /// Returns the sum of all priced parts, which counts against caps and balances.
    pub fn known_micros(&self) -> u64 {
        self.model_micros + self.sandbox_cpu_micros + self.sandbox_memory_micros + self.fee_micros
    }

    /// Returns the sum, or `None` if a part of it is unknown.
    pub fn total_micros(&self) -> Option<u64> {
        (self.unpriced_steps == 0).then(|| self.known_micros())
    }
}

impl From<Shape> for Cost {
    fn from(shape: Shape) -> Self {
        Self {
            model_micros: shape.model_micros,
            sandbox_cpu_micros: shape.sandbox_cpu_micros,
            sandbox_memory_micros: shape.sandbox_memory_micros,
            fee_micros: shape.fee_micros,
            unpriced_steps: shape.unpriced_steps,
        }
    }
}

impl From<Cost> for Shape {
    fn from(cost: Cost) -> Self {
        Self {
            total_micros: cost.total_micros(),
            model_micros: cost.model_micros,
            sandbox_cpu_micros: cost.sandbox_cpu_micros,
            sandbox_memory_micros: cost.sandbox_memory_micros,
            fee_micros: cost.fee_micros,
            unpriced_steps: cost.unpriced_steps,
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            model_micros: self.model_micros + other.model_micros,
            sandbox_cpu_micros: self.sandbox_cpu_micros + other.sandbox_cpu_micros,
            sandbox_memory_micros: self.sandbox_memory_micros + other.sandbox_memory_micros,
            fee_micros: self.fee_micros + other.fee_micros,
            unpriced_steps: self.unpriced_steps + other.unpriced_steps,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_an_unknown_part_is_null_and_says_so() {
        let known = Cost { model_micros: 7, fee_micros: 3, ..Cost::default() };
        let json = serde_json::to_value(known).expect("plain data");
        assert_eq!(json["total_micros"], 10);
        let partly = known + Cost { unpriced_steps: 1, ..Cost::default() };
        let json = serde_json::to_value(partly).expect("plain data");
        assert!(json["total_micros"].is_null());
        assert_eq!((json["model_micros"].as_u64(), json["unpriced_steps"].as_u64()), (Some(7), Some(1)));
        assert_eq!(serde_json::from_value::<Cost>(json).expect("its own form"), partly);
    }
}
