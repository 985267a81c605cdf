//! What stands in for the world outside the service.

pub mod receiver;
pub mod resolver;
