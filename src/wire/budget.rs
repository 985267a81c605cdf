//! Budgets and usage on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::countable;
use crate::{
    base::json,
    domain::{
        AgentId, Usage,
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
    /// Promised to model calls and commands that are under way.
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
