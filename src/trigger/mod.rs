//! Schedules, scheduled wakes, and the one implementation of opening a session.
//!
//! A [`Scheduler`] fires due schedules and wakes sessions at the times that their agents scheduled.
//! `http` calls this module too: a new session pins the same data independent of what opens it. The
//! log is written only through `journal`; due times are compared with the database's clock.

mod fire;
mod open;
mod refused;
mod scheduler;
mod source;

pub use fire::{Fired, fire};
pub use open::{Choice, Opening, adopt, check_model, environment, open, pin};
pub use refused::Refused;
pub use scheduler::Scheduler;
pub use source::{pin_sources, sources};
