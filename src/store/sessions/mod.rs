//! Sessions: state, log, turns, tokens, lists; idempotency keys; purge.

pub mod command;
pub mod creation;
pub mod event;
pub mod idempotency;
pub mod listing;
pub mod purge;
pub mod record;
pub mod registry;
pub mod session;
pub mod token;
pub mod turn;
