//! Foundation module: ids, time, entropy, secrets, limits, back-off, cursors.
//!
//! Every module imports this one; it imports no other module and does no I/O. The wall clock,
//! random bits and new ids come only from here, so that a test can move the clock and a simulation
//! can replay a seed.

pub mod backoff;
pub mod braces;
pub mod clock;
pub(crate) mod cursor;
pub mod entropy;
pub(crate) mod id;
pub(crate) mod json;
pub mod key;
pub mod limit;
pub mod loops;
pub(crate) mod origin;
pub mod seal;
pub mod shares;
pub mod text;
pub(crate) mod trace;

pub use clock::{Clock, Timestamp};
pub use entropy::Entropy;
pub use id::{Id, Kind};
pub use origin::Origin;
pub use secrecy::{ExposeSecret, SecretString};
