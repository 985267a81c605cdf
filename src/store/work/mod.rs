//! Jobs and their claims, leaders, nodes, processes and their notifications, stuck sessions.

pub(crate) mod gauge;
pub mod job;
pub(crate) mod leader;
pub(crate) mod node;
pub mod notification;
pub mod process;
pub(crate) mod stuck;
