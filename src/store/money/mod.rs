//! Billing, budgets, spend caps and reservations, usage.

pub(crate) mod billing;
pub(crate) mod budget;
mod past_spend;
pub mod reservation;
pub(crate) mod spend;
pub(crate) mod usage;

pub(in crate::store) use past_spend::PastSpend;
