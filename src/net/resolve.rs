//! Name resolution, and the filter for its results.
//!
//! The HTTP client calls [`Vetted`] when it is about to connect and connects to the result: there is no
//! second lookup whose answer could differ.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{sync::Semaphore, time::timeout};

use super::url::{Named, Refused, allows};
use crate::base::limit::{NET_ADDRESSES_MAX, NET_LOOKUPS_MAX, NET_RESOLVE_TIMEOUT};

/// Source of a name's addresses.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// All current addresses of a name, in the order to try them.
    ///
    /// # Errors
    /// Any failure of the lookup, and a name without addresses.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// System resolver: `/etc/hosts`, then DNS, as the system is configured.
#[derive(Debug)]
pub struct SystemResolver {
    lookups: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self { lookups: Arc::new(Semaphore::new(NET_LOOKUPS_MAX)) }
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        timeout(NET_RESOLVE_TIMEOUT, self.lookup(host.to_owned())).await?
    }
}

impl SystemResolver {
    #[expect(clippy::disallowed_methods, reason = "awaited at once, behind a semaphore")]
    async fn lookup(&self, host: String) -> io::Result<Vec<IpAddr>> {
        let permit = Arc::clone(&self.lookups).acquire_owned().await.map_err(io::Error::other)?;
        // The system's resolver blocks a thread and cannot be interrupted. The permit moves into the thread,
        // so that names that never resolve occupy a bounded number of threads, however often they time out
        // here.
        let lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            (host.as_str(), 0).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect())
        });
        lookup.await.map_err(io::Error::other)?
    }
}

/// A resolver that returns only allowed addresses.
pub(super) struct Vetted {
    pub resolver: Arc<dyn Resolver>,
    pub named: Named,
    /// Whether the connections are without TLS.
    pub plain: bool,
}

impl Vetted {
    /// Resolves a name to the allowed addresses; at least one.
    ///
    /// Addresses that are not allowed are dropped without refusing the name: a host behind DNS64 has a
    /// synthetic address in addition to its own.
    pub(super) async fn vetted(&self, host: &str) -> Result<Vec<SocketAddr>, Refused> {
        let found = self.resolver.resolve(host).await.unwrap_or_else(|error| {
            tracing::debug!(host, %error, "name resolution failed");
            Vec::new()
        });
        let vetted: Vec<_> = found
            .into_iter()
            .filter(|ip| allows(&self.named, self.plain, *ip))
            .take(NET_ADDRESSES_MAX)
            // With port 0, the client uses the URL's port.
            .map(|ip| SocketAddr::new(ip, 0))
            .collect();
        if vetted.is_empty() { Err(Refused::Address { host: host.to_owned() }) } else { Ok(vetted) }
    }
}

/// Adapter of [`Vetted`] for the HTTP client.
pub(super) struct ReqwestResolver(pub Arc<Vetted>);

impl Resolve for ReqwestResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let vetted = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = vetted.vetted(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::net::Policy;

    /// Resolver that returns its answers from last to first.
    struct Answers(Mutex<Vec<&'static str>>);

    #[async_trait]
    impl Resolver for Answers {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            let answer = self.0.lock().expect("no holder panics").pop().ok_or(io::ErrorKind::NotFound)?;
            Ok(answer.split_whitespace().map(|ip| ip.parse().expect("an address")).collect())
        }
    }

    #[tokio::test]
    async fn a_name_that_is_public_first_and_private_then_is_refused_then() {
        let answers = vec!["::1 10.0.0.1", "127.0.0.1 2606:4700::1111", "93.184.215.14 1.1.1.1"];
        let resolver = Arc::new(Answers(Mutex::new(answers)));
        let named = Named::ByOrg(Policy::default());
        let gate = ReqwestResolver(Arc::new(Vetted { resolver, named, plain: false }));
        // The connector can connect only to these addresses.
        let connectable = async || {
            let name = "rebind.example".parse().expect("a name");
            gate.resolve(name).await.map(|found| found.map(|at| at.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(connectable().await.expect("public"), ["93.184.215.14:0", "1.1.1.1:0"]);
        assert_eq!(connectable().await.expect("one is public"), ["[2606:4700::1111]:0"]);
        assert!(connectable().await.is_err(), "none is public");
        assert!(connectable().await.is_err(), "no such name");
    }

    #[tokio::test]
    async fn a_name_with_many_addresses_is_tried_at_some() {
        let resolver = Arc::new(Answers(Mutex::new(vec![
            "1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5 1.1.1.6 1.1.1.7 \
            1.1.1.8 1.1.1.9 1.1.1.10",
        ])));
        let named = Named::ByOrg(Policy::default());
        let vetted = Vetted { resolver, named, plain: false };
        assert_eq!(vetted.vetted("many.example").await.expect("public").len(), NET_ADDRESSES_MAX);
    }

    #[tokio::test]
    async fn the_resolver_of_the_host_knows_itself() {
        let found = SystemResolver::default().resolve("localhost").await.expect("in /etc/hosts");
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty(), "{found:?}");
    }
}
