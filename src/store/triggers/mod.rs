//! Rows of inbound triggers, invoke tokens, schedules and their runs, and scheduled wakes.

pub mod invoke_token;
pub mod run;
pub mod schedule;
pub mod scheduled_wake;
pub mod trigger;
