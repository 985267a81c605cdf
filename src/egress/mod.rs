//! The egress proxy: the only network connection of a sandbox.
//!
//! Created by `lifecycle` under the lease of the session; calls `net` for every address. A sandbox has no
//! network but a socket that ends here. Requests that no rule of its environment allows are refused, and
//! nothing is sent before its decision is in the log. Secrets exist only here: the sandbox holds placeholders,
//! which are replaced in requests to the hosts that a secret is bound to, and restored in the responses of
//! those hosts.

mod authority;
mod decision;
mod exchange;
mod fetch;
mod grant;
mod granted;
mod headers;
mod ledger;
mod message;
mod policy;
mod proxy;
mod registry;
mod scrub;
mod secret;
mod tunnel;

pub use self::{
    authority::Authority,
    decision::{Decision, Manner, Reason, Verdict},
    fetch::{FetchFault, Fetched},
    grant::{Grant, PROOF_HEADER, Seen},
    granted::Granted,
    ledger::{Log, Lost},
    policy::{Addresses, Policy},
    proxy::{Parts, Proxy},
    registry::{PUBLIC, Registries},
    secret::{Secret, Secrets},
};
