//! Billing, budgets, spend caps and reservations, usage.

pub mod billing;
pub mod budget;
pub mod spend;
pub mod usage;
