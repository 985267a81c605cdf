//! The proxy between a sandbox and the world, and the only way that leads out of one.
//!
//! Made by the worker for as long as it holds a sandbox's session; calls `net` for every
//! address. A sandbox has no network but a socket that ends here. What no rule of its
//! environment names is refused, and nothing leaves before the log knows of it.
//! Secrets exist here only: the sandbox holds placeholders, which are replaced on the way
//! to the hosts that a secret is bound to, and put back into what those hosts answer.

mod authority;
mod decision;
mod exchange;
mod fetch;
mod grant;
mod headers;
mod ledger;
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
    grant::{Grant, Granted, PROOF_HEADER, Seen},
    ledger::{Log, Lost},
    policy::Policy,
    proxy::{Parts, Proxy},
    registry::{PUBLIC, Registries},
    secret::{Secret, Secrets},
};
