//! Sandboxes of a node agent, for workers without privileges.
//!
//! The agent (`--role node`, module `node`) makes the sandboxes of its machine. This is its client: it implements the
//! same ports as the sandboxes of this process, so `lifecycle` does not know where they are.

mod caller;
mod egress;
pub(crate) mod grant;
mod link;
pub(crate) mod protocol;
mod remote;

pub use self::{
    grant::GrantKey,
    link::{NodeAddress, TlsFiles},
    remote::RemoteNode,
};
