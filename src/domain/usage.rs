//! Usage of a model call, a turn or a session.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    cost::{self, Cost},
    event::{Body, Draft, caller_events, informational},
};

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

    /// Returns the usage of an event; the only rule, shared by the fold and the deltas.
    pub fn of(draft: &Draft) -> Self {
        let cost = |cost| Self { cost, ..Self::default() };
        match &draft.body {
            Body::StepCompleted(step) => {
                // A step from before the introduction of prices has no price information.
                let says_nothing = step.cost_micros.is_none() && step.usage.cost.unpriced_steps == 0;
                step.usage + cost(Cost { unpriced_steps: u64::from(says_nothing), ..Cost::default() })
            }
            Body::StepAborted(step) => step.usage,
            Body::ToolCall { .. } => Self { tool_calls: 1, ..Self::default() },
            Body::TurnStarted { fee_micros, .. } => cost(Cost { fee_micros: *fee_micros, ..Cost::default() }),
            Body::ExecCompleted { exec_id, cpu_micros, memory_micros, .. } => Self {
                tool_calls: u64::from(exec_id.is_some()),
                ..cost(Cost {
                    sandbox_cpu_micros: *cpu_micros,
                    sandbox_memory_micros: *memory_micros,
                    ..Cost::default()
                })
            },
            Body::SessionCreated(_)
            | caller_events!()
            | Body::SessionRejected { .. }
            | Body::ExecStarted { .. }
            | Body::SandboxRotationFailed { .. }
            | Body::UserMessage { .. }
            | Body::TurnCancelRequested { .. }
            | Body::AgentMessage { .. }
            | Body::AgentThinking { .. }
            | Body::ToolResult { .. }
            | Body::ErrorModel(_)
            | Body::ErrorRuntime(_)
            | Body::ErrorTask(_)
            | Body::TurnCompleted(_)
            | informational!() => Self::default(),
        }
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
