//! Request and response bodies of budgets and usage.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::validate_numbers;
use crate::{
    base::json,
    domain::{
        AgentId, Session, Usage,
        spend::{SpendCaps, Spent},
    },
};

/// Balance, spend caps and spend of the organization.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Budget)]
pub(crate) struct BudgetView {
    /// Remaining micro-USD; null means unlimited. Only the operator can top it up.
    #[schema(required)]
    pub balance_micros: Option<i64>,
    pub spend_caps: SpendCaps,
    pub spent: Spent,
    /// Micro-USD reserved for running model calls and commands.
    pub reserved_micros: u64,
}

/// Changes to the organization's budget.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchBudget {
    /// Replaces all three caps; an omitted cap is removed.
    #[garde(custom(validate_numbers))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub spend_caps: Option<SpendCaps>,
}

/// Usage, summed over every dimension that the row does not name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageRow)]
pub(crate) struct UsageRow {
    /// Day in UTC; present when grouped `by` day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Date)]
    pub day: Option<String>,
    /// Present when grouped `by` agent; null for sessions without an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AgentId>)]
    pub agent_id: Option<Option<AgentId>>,
    /// `provider/model`; present when grouped `by` model; null for sessions without an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Option<String>>,
    pub usage: Usage,
}

/// Usage of a session: in total and per model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionUsage {
    pub usage: Usage,
    pub models: Vec<ModelUsage>,
}

/// Usage of one model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelUsage {
    /// `provider/model`; null in a session without an agent.
    #[schema(required)]
    pub model: Option<String>,
    pub usage: Usage,
}

/// Usage that counts against the session's limits of the same names. Tokens, cost and tool calls include
/// the session's descendants.
#[derive(Debug, Serialize, ToSchema)]
pub struct BudgetConsumed {
    pub tokens: u64,
    pub turns: u64,
    /// Cost of everything that has a price, in micro-USD.
    pub cost_micros: u64,
    /// Seconds of ended turns and of callers' commands.
    pub duration_seconds: u64,
    pub tool_calls: u64,
    /// Share of the descendant sessions; absent if the session never had a child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<ChildrenConsumed>,
}

/// Usage of the descendant sessions, including deleted ones.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ChildrenConsumed {
    /// Number of descendant sessions that are not deleted.
    pub sessions: u64,
    pub tokens: u64,
    pub cost_micros: u64,
    pub tool_calls: u64,
}

impl BudgetConsumed {
    /// Adds the usage of the descendant sessions.
    pub fn with(self, children: ChildrenConsumed) -> Self {
        Self {
            tokens: self.tokens + children.tokens,
            cost_micros: self.cost_micros + children.cost_micros,
            tool_calls: self.tool_calls + children.tool_calls,
            children: Some(children),
            ..self
        }
    }

    /// Usage of the session alone.
    pub fn of(session: &Session) -> Self {
        Self {
            tokens: session.usage.tokens(),
            turns: u64::try_from(session.turns).unwrap_or_default(),
            cost_micros: session.usage.cost.known_micros(),
            duration_seconds: session.duration_seconds(),
            tool_calls: session.usage.tool_calls,
            children: None,
        }
    }
}
