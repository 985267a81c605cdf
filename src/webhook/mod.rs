//! Webhook delivery: claims deliveries from the outbox, signs and sends them, schedules retries.
//!
//! Started by `app` beside the worker; calls `store` for the outbox and `net` for requests. Deliveries
//! are at least once: receivers recognize repetitions by `webhook-id`, which all attempts share.

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
