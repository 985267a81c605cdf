//! Rows of inbound triggers, schedules and their runs, and scheduled wakes.

pub mod run;
pub mod schedule;
pub mod scheduled_wake;
pub mod trigger;
