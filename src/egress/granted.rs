//! The grant of a proxy while one clone runs.

use std::sync::{Arc, PoisonError};

use hyper::http::request;
use url::Url;

use super::{
    grant::{Grant, Seen},
    message::Target,
    proxy::Proxy,
};

/// A grant that is valid until this is dropped.
pub struct Granted {
    proxy: Arc<Proxy>,
    grant: Arc<Grant>,
}

impl Granted {
    /// Responses of the host so far.
    pub fn seen(&self) -> Seen {
        self.grant.seen().clone()
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let mut held = self.proxy.grant.write().unwrap_or_else(PoisonError::into_inner);
        held.take_if(|held| Arc::ptr_eq(held, &self.grant));
    }
}

impl Proxy {
    /// Sets the proxy's grant, replacing a previous one.
    pub fn allow(self: &Arc<Self>, grant: Grant) -> Granted {
        let grant = Arc::new(grant);
        *self.grant.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&grant));
        Granted { proxy: Arc::clone(self), grant }
    }

    /// Whether requests to this host and port must be inspected for a clone.
    pub(super) fn is_granted(&self, host: &str, port: u16) -> bool {
        let held = self.grant.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().is_some_and(|grant| grant.host == host && grant.port == port)
    }

    /// The grant that covers a request and whose proof the request carries.
    pub(super) fn granted(&self, target: &Target, parts: &request::Parts, url: &Url) -> Option<Arc<Grant>> {
        let held = self.grant.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().filter(|grant| grant.covers(target, parts, url)).map(Arc::clone)
    }
}
