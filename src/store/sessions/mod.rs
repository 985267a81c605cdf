//! Sessions: state, log, turns, actions, files, snapshots, tokens, lists; idempotency keys; purge.

pub(crate) mod action;
pub(crate) mod child_session;
pub(crate) mod command;
pub(crate) mod creation;
pub(crate) mod event;
pub(crate) mod event_content;
pub(crate) mod file;
pub(crate) mod idempotency;
pub(crate) mod listing;
pub(crate) mod log;
mod log_fold;
pub mod object;
pub(crate) mod purge;
pub mod record;
pub(crate) mod registry;
pub(crate) mod session;
pub mod snapshot;
pub(crate) mod token;
pub(crate) mod turn;
