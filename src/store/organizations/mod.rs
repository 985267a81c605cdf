//! Organizations, API keys, the audit log, acts of the operator.

pub(crate) mod audit;
pub mod key;
pub(crate) mod operator;
pub(crate) mod org;
