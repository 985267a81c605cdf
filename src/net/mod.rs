//! Outgoing connections: the only module that connects to an address that an organization supplies.
//!
//! Called by `webhook`, `model` (a credential's `base_url`), `mcp`, `file`, `egress`, `lifecycle` (local sources) and `http`
//! (checks of an address); calls DNS and the network. Invariant: a connection is opened only to a vetted IP
//! address. A name is resolved once per connection, and the vetted answer is the one that is connected to, so
//! DNS changes between check and connect have no effect. Redirects are not followed, but for MCP servers within
//! their origin, and no proxy from environment variables is used.

mod address;
mod client;
mod denied;
mod dial;
mod local;
mod resolve;
mod tls;
mod url;

pub use self::{
    client::{Client, refusal},
    denied::Denied,
    dial::{Dialer, Route},
    local::{LocalDirectories, NotLocal},
    resolve::{Resolver, SystemResolver, for_org},
    tls::install_tls,
    url::{Refused, parse},
};

/// Allowed destinations of an organization's URL.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Whether private addresses are allowed, with plain http to those only. Private means RFC 1918,
    /// loopback, shared and unique local. Public addresses always need https.
    pub allow_private: bool,
    /// Addresses that are refused: those of the operator's networks always, public ones of this machine unless
    /// private addresses are allowed.
    pub denied: Denied,
}
