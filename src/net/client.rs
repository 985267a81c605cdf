//! The HTTP client for addresses that organizations name.
//!
//! Called by `webhook::send` and the model adapters; calls `url` for what can be
//! told beforehand and hands `resolve::Vetted` to the connector for the rest.

use std::{error::Error, fmt, sync::Arc};

use reqwest::{Method, RequestBuilder, redirect};
use url::Url;

use super::{
    Policy, Resolver,
    resolve::{Gate, Vetted},
    tls,
    url::{Named, Refused, check, is_plain},
};
use crate::base::limit::{NET_CONNECT_TIMEOUT, NET_IDLE_PER_HOST_MAX, NET_IDLE_TIMEOUT};

/// Sends requests to vetted addresses only; cheap to clone.
///
/// Redirects are not followed, cookies not kept, proxies of the environment not
/// used. Timeouts beyond connecting are the caller's to set.
#[derive(Clone)]
pub struct Client {
    named: Named,
    // Two, because an answer is vetted differently for each, and a resolver is
    // not told the scheme of the URL that it resolves for.
    secure: reqwest::Client,
    plain: reqwest::Client,
}

impl Client {
    /// A client for URLs that organizations name.
    pub fn new(policy: Policy, resolver: Arc<dyn Resolver>) -> Self {
        Self::named(Named::ByOrg(policy), resolver)
    }

    /// A client for URLs from the operator's settings: any address, http or https.
    pub fn trusted(resolver: Arc<dyn Resolver>) -> Self {
        Self::named(Named::ByOperator, resolver)
    }

    /// Whether a URL may be stored: everything but its name's present addresses.
    ///
    /// # Errors
    /// The reason, for the organization to read. No DNS is asked, so a name that leads
    /// to a private address passes here and is refused at each connection.
    pub fn check(&self, url: &Url) -> Result<(), Refused> {
        check(self.named, url)
    }

    /// Begins a request.
    ///
    /// # Errors
    /// As [`Client::check`]. What only the addresses of a name can tell comes as
    /// an error of `send`, in which [`refusal`] finds the reason.
    pub fn request(&self, method: Method, url: &Url) -> Result<RequestBuilder, Refused> {
        self.check(url)?;
        let client = if is_plain(self.named, url)? { &self.plain } else { &self.secure };
        Ok(client.request(method, url.clone()))
    }

    fn named(named: Named, resolver: Arc<dyn Resolver>) -> Self {
        let client = |plain| build(Vetted { resolver: Arc::clone(&resolver), named, plain });
        Self { named, secure: client(false), plain: client(true) }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.named).finish()
    }
}

/// The refusal inside a failed request, when that is why it failed.
pub fn refusal(error: &reqwest::Error) -> Option<&Refused> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        cause = error.source();
    }
    None
}

fn build(vetted: Vetted) -> reqwest::Client {
    reqwest::Client::builder()
        .https_only(!vetted.plain)
        .dns_resolver(Gate(Arc::new(vetted)))
        .tls_backend_preconfigured(tls::config())
        .redirect(redirect::Policy::none())
        .referer(false)
        .no_proxy()
        .connect_timeout(NET_CONNECT_TIMEOUT)
        .pool_max_idle_per_host(NET_IDLE_PER_HOST_MAX)
        .pool_idle_timeout(NET_IDLE_TIMEOUT)
        .build()
        .expect("only a TLS configuration of another rustls than reqwest's is refused")
}
