//! Budgets and usage on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::countable;
use crate::{
    base::json,
    domain::{
        AgentId, Session, Usage,
        spend::{SpendCaps, Spent},
    },
};

/// What the organization may spend and has spent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Budget)]
pub struct BudgetView {
    /// Micro-USD that are left; null without a bound. The operator tops it up.
    #[schema(required)]
    pub balance_micros: Option<i64>,
    pub spend_caps: SpendCaps,
    pub spent: Spent,
    /// Reserved for model calls and commands that are under way.
    pub reserved_micros: u64,
}

/// What to change of the organization's budget.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchBudget {
    /// Replaces all three caps; one that is left out is removed.
    #[garde(custom(countable))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub spend_caps: Option<SpendCaps>,
}

/// What was used, summed over everything that the row does not name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageRow)]
pub struct UsageRow {
    /// A day in UTC, when asked for `by` day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Date)]
    pub day: Option<String>,
    /// When asked for `by` agent; null for sessions without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AgentId>)]
    pub agent_id: Option<Option<AgentId>>,
    /// `provider/model`, when asked for `by` model; null for sessions without an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Option<String>>,
    pub usage: Usage,
}

/// What counts against the limits of the whole session, by their names: of tokens, cost
/// and tool calls also what the sessions below it used.
#[derive(Debug, Serialize, ToSchema)]
pub struct BudgetConsumed {
    pub tokens: u64,
    pub turns: u64,
    /// Everything that has a price.
    pub cost_micros: u64,
    /// Of turns that ended.
    pub duration_seconds: u64,
    pub tool_calls: u64,
    /// The part of the sessions below it; absent where there never was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<ChildrenConsumed>,
}

/// What the sessions below one used, those of them too that were deleted.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ChildrenConsumed {
    /// Children and theirs that were not deleted.
    pub sessions: u64,
    pub tokens: u64,
    pub cost_micros: u64,
    pub tool_calls: u64,
}

impl BudgetConsumed {
    /// The same with what the sessions below it used.
    pub fn with(self, children: ChildrenConsumed) -> Self {
        Self {
            tokens: self.tokens + children.tokens,
            cost_micros: self.cost_micros + children.cost_micros,
            tool_calls: self.tool_calls + children.tool_calls,
            children: Some(children),
            ..self
        }
    }

    /// Of the session alone.
    pub fn of(session: &Session) -> Self {
        Self {
            tokens: session.usage.tokens(),
            turns: u64::try_from(session.turns).unwrap_or_default(),
            cost_micros: session.usage.cost.known_micros(),
            duration_seconds: session.active_seconds,
            tool_calls: session.usage.tool_calls,
            children: None,
        }
    }
}
