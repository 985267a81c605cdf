//! Jobs and their claims, nodes, stuck sessions, notifications between processes.

pub mod gauge;
pub mod job;
pub mod node;
pub mod notification;
pub mod notify;
mod response_delta;
pub mod stuck;
