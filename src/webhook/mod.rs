//! Letters to receivers: written, signed, sent, and scheduled again.
//!
//! Called by `worker`, which takes deliveries from the outbox and records what
//! became of them; calls `net` and nothing else that does I/O. A delivery is made
//! at least once: a receiver tells repeats by `webhook-id`, which all tries share.

mod letter;
mod schedule;
mod send;
mod sign;

pub use self::{
    letter::{Letter, Parts},
    schedule::{Next, next},
    send::{Outcome, send},
    sign::{Secret, SecretError, sign},
};
