//! Usage of a model call, a turn or a session.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cost::{self, Cost};

/// Sums of tokens and work. All counts start at zero and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Usage {
    /// Input tokens that were not served from a cache.
    pub input_tokens: u64,
    /// Output tokens, thinking included.
    pub output_tokens: u64,
    /// Input tokens written to the provider's prompt cache.
    pub cache_write_tokens: u64,
    /// Input tokens read from the provider's prompt cache.
    pub cache_read_tokens: u64,
    /// Completed model calls.
    pub steps: u64,
    /// Requested tool calls.
    pub tool_calls: u64,
    #[schema(value_type = cost::Shape)]
    pub cost: Cost,
}

impl Usage {
    /// Returns the tokens that count against the limit `tokens`: all four kinds.
    pub fn tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens + self.cache_write_tokens + self.cache_read_tokens
    }

    /// Returns whether nothing was used.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens + other.input_tokens,
            output_tokens: self.output_tokens + other.output_tokens,
            cache_write_tokens: self.cache_write_tokens + other.cache_write_tokens,
            cache_read_tokens: self.cache_read_tokens + other.cache_read_tokens,
            steps: self.steps + other.steps,
            tool_calls: self.tool_calls + other.tool_calls,
            cost: self.cost + other.cost,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
