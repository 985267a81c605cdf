//! The node agent: makes the sandboxes of its machine for workers that have no privileges.
//!
//! Created by the composition root (`--role node`); called by `sandbox::node`, its client, over a unix socket or TLS;
//! calls `node::local`. It has root, and neither a database nor a secret of the deployment: it carries out what a
//! grant of the deployment names, for the sandbox that the grant names. All its state is in the file system, so
//! another agent on the same directories continues where one ended.

mod arrivals;
mod calls;
mod connections;
mod keys;
mod listener;
pub mod local;

pub use self::{connections::Agent, listener::Listener};
