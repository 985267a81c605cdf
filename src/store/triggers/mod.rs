//! What starts sessions: inbound triggers, schedules and their runs, scheduled wakes.

pub mod run;
pub mod schedule;
pub mod scheduled_wake;
pub mod trigger;
