//! The only room that connects to an address which an organization named.
//!
//! Called by `webhook`, `model` (a credential's `base_url`) and `egress`; calls
//! DNS and the network. Invariant: a connection is opened only to an address that
//! was vetted as an address. A name is resolved once per connection and the
//! answer that was vetted is the answer that is connected to, so nothing that
//! changes in DNS between a check and a connect matters. Redirects are never
//! followed and no proxy of the environment is used.

mod address;
mod client;
mod dial;
mod local;
mod resolve;
mod tls;
mod url;

pub use self::{
    address::is_public,
    client::{Client, refusal},
    dial::{Dialer, Route},
    local::{LocalDirectories, NotLocal},
    resolve::{Resolver, SystemResolver},
    tls::install_tls,
    url::{Refused, parse},
};

/// Where an organization's URL may lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Also private addresses (RFC 1918, loopback, shared, unique local), and
    /// plain http to those only. Public addresses always need https.
    pub allow_private: bool,
}
