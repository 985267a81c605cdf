//! Rows of inbound triggers, invoke tokens, schedules and their runs, and scheduled wakes.

pub(crate) mod invoke_token;
pub(crate) mod run;
pub(crate) mod schedule;
pub mod scheduled_wake;
pub(crate) mod trigger;
