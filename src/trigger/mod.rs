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

pub(crate) use fire::{Fired, fire};
pub(crate) use open::{
    Choice, Inherited, Opening, adopt, check_fallback_credentials, check_model, environment, open,
    pinned_skills, pins,
};
pub(crate) use refused::Refused;
pub(crate) use scheduler::Scheduler;
pub(crate) use source::{pin_sources, sources};
