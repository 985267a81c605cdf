//! Billing, budgets, spend caps and reservations, usage.

pub(crate) mod billing;
pub(crate) mod budget;
pub(crate) mod spend;
pub(crate) mod usage;
