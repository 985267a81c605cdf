//! Organizations, API keys, the audit log, acts of the operator.

pub mod audit;
pub mod key;
pub mod operator;
pub mod org;
