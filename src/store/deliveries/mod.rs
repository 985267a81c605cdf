//! Webhooks: destinations, the outbox, deliveries and attempts, notices.

pub mod delivery;
pub mod destination;
pub mod notice;
pub mod outbox;
