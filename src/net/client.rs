//! HTTP client for URLs that organizations supply.
//!
//! Called by `webhook::send` and the model adapters. Calls `url` for checks without DNS, and passes
//! `resolve::Vetted` to the connector for the others.

use std::{error::Error, fmt, sync::Arc};

use reqwest::{Method, RequestBuilder, redirect};
use url::Url;

use super::{
    Policy, Resolver,
    resolve::{ReqwestResolver, Vetted},
    tls,
    url::{Named, Refused, check, is_plain},
};
use crate::base::limit::{MCP_REDIRECTS_MAX, NET_CONNECT_TIMEOUT, NET_IDLE_PER_HOST_MAX, NET_IDLE_TIMEOUT};

/// Sends requests to vetted addresses only; cheap to clone.
///
/// Redirects are not followed, except by [`Client::within_origin`]; cookies are not stored, and proxies from environment variables are not used.
/// The caller sets all timeouts except that of connecting.
#[derive(Clone)]
pub struct Client {
    named: Named,
    // Two clients, because addresses are vetted differently for each, and a resolver does not receive the
    // URL's scheme.
    secure: reqwest::Client,
    plain: reqwest::Client,
}

impl Client {
    /// Creates a client for URLs that organizations supply.
    pub fn new(policy: Policy, resolver: Arc<dyn Resolver>) -> Self {
        Self::named(Named::ByOrg(policy), resolver, redirect::Policy::none)
    }

    /// Creates a client for URLs that organizations supply, which follows redirects that keep the method and stay within
    /// the origin. Others are not followed: what authorizes a request is for its origin only.
    pub fn within_origin(policy: Policy, resolver: Arc<dyn Resolver>) -> Self {
        Self::named(Named::ByOrg(policy), resolver, within_origin)
    }

    /// Creates a client for URLs from the operator's settings: any address, http or https.
    pub fn trusted(resolver: Arc<dyn Resolver>) -> Self {
        Self::named(Named::ByOperator, resolver, redirect::Policy::none)
    }

    /// Checks whether a URL may be stored: everything except the current addresses of its name.
    ///
    /// # Errors
    /// The reason, for the organization. Uses no DNS: a name that resolves to a private address passes here
    /// and is refused at each connection.
    pub fn check(&self, url: &Url) -> Result<(), Refused> {
        check(&self.named, url)
    }

    /// Starts a request.
    ///
    /// # Errors
    /// As [`Client::check`]. A refusal of the resolved addresses is an error of `send`; [`refusal`] extracts
    /// it.
    pub fn request(&self, method: Method, url: &Url) -> Result<RequestBuilder, Refused> {
        Ok(self.vetted(url)?.request(method, url.clone()))
    }

    /// Returns the client of `reqwest` for requests to this URL, for a library that makes its requests itself.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn vetted(&self, url: &Url) -> Result<&reqwest::Client, Refused> {
        self.check(url)?;
        Ok(if is_plain(&self.named, url)? { &self.plain } else { &self.secure })
    }

    fn named(named: Named, resolver: Arc<dyn Resolver>, redirects: fn() -> redirect::Policy) -> Self {
        let client = |plain| {
            build(Vetted { resolver: Arc::clone(&resolver), named: named.clone(), plain }, redirects())
        };
        let (secure, plain) = (client(false), client(true));
        Self { named, secure, plain }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.named).finish()
    }
}

/// The refusal that caused a failed request, if any.
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

/// Follows 307 and 308, which repeat the request, to URLs of the same origin.
fn within_origin() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let keeps_method = [307, 308].contains(&attempt.status().as_u16());
        let is_within =
            attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
        if !keeps_method || attempt.previous().len() > MCP_REDIRECTS_MAX {
            attempt.stop()
        } else if is_within {
            attempt.follow()
        } else {
            attempt.error(Refused::Redirect)
        }
    })
}

fn build(vetted: Vetted, redirects: redirect::Policy) -> reqwest::Client {
    reqwest::Client::builder()
        .https_only(!vetted.plain)
        .dns_resolver(ReqwestResolver(Arc::new(vetted)))
        .tls_backend_preconfigured(tls::config())
        .redirect(redirects)
        .referer(false)
        .no_proxy()
        .connect_timeout(NET_CONNECT_TIMEOUT)
        .pool_max_idle_per_host(NET_IDLE_PER_HOST_MAX)
        .pool_idle_timeout(NET_IDLE_TIMEOUT)
        .build()
        .expect("reqwest accepts a TLS configuration of its own rustls version")
}
