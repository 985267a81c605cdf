//! Jobs and their claims, leaders, nodes, stuck sessions, notifications between processes.

pub(crate) mod gauge;
pub mod job;
pub(crate) mod leader;
pub(crate) mod node;
pub mod notification;
pub(crate) mod notify;
mod response_delta;
pub(crate) mod stuck;
