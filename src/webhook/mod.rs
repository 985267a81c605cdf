//! From the outbox to signed POSTs: claimed, written, signed, sent, scheduled again.
//!
//! Started by `app` beside the worker; calls `store` for the outbox and `net` to
//! send. A delivery is made at least once: a receiver tells repeats by
//! `webhook-id`, which all tries share.

mod dispatcher;
mod permits;
mod schedule;
mod send;
mod sign;
mod signed_request;

pub use self::{
    dispatcher::Dispatcher,
    schedule::{Next, next},
    send::{Outcome, send},
    sign::{Refused, Secret, SecretError, is_signed, sign, verify, verify_github},
    signed_request::{Parts, SignedRequest},
};
