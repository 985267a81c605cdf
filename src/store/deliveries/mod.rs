//! Webhooks: destinations, the outbox, deliveries and attempts, notices.

pub(crate) mod delivery;
pub(crate) mod destination;
pub(crate) mod notice;
pub mod outbox;
