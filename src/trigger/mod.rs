//! Work that begins by itself, and the one way in which a session is opened.
//!
//! A [`Timekeeper`] fires schedules whose slot has come, and wakes sessions at the times
//! that their agents asked for. `http` asks here too: what a new
//! session pins is the same whoever opens it. The log is written through `journal`
//! alone; what is due is judged by the database's clock.

mod fire;
mod open;
mod source;
mod timekeeper;

pub use fire::{Fired, fire};
pub use open::{Choice, Opening, Refused, adopt, check_model, environment, open, pin};
pub use source::{pin_sources, sources};
pub use timekeeper::Timekeeper;
