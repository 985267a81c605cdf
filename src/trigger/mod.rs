//! Work that begins by itself, and the one way in which a session is opened.
//!
//! A [`Scheduler`] fires schedules whose slot has come, and wakes sessions at the times
//! that their agents asked for. `http` asks here too: what a new
//! session pins is the same whoever opens it. The log is written through `journal`
//! alone; what is due is judged by the database's clock.

mod fire;
mod open;
mod scheduler;
mod source;

pub use fire::{Fired, fire};
pub use open::{Choice, Opening, Refused, adopt, check_model, environment, open, pin};
pub use scheduler::Scheduler;
pub use source::{pin_sources, sources};
