//! Name resolution, and the filter for its results.
//!
//! The HTTP client calls [`Vetted`] when it is about to connect and connects to the result: there is no
//! second lookup whose answer could differ.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Instant, SystemTime},
};

use async_trait::async_trait;
use hickory_resolver::{
    TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts},
    net::runtime::TokioRuntimeProvider,
    system_conf::read_system_conf,
};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::timeout;

use super::url::{Named, Refused, allows};
use crate::{
    base::{
        limit::{
            NET_ADDRESSES_MAX, NET_FILES_INTERVAL, NET_LOOKUP_TTL_MAX, NET_LOOKUPS_CACHED_MAX,
            NET_LOOKUPS_MAX, NET_LOOKUPS_PER_ORG_MAX, NET_RESOLVE_TIMEOUT,
        },
        shares::Shares,
    },
    domain::OrgId,
};

/// Source of a name's addresses.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// All current addresses of a name, in the order to try them.
    ///
    /// # Errors
    /// Any failure of the lookup, and a name without addresses.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

tokio::task_local! {
    static ASKS: OrgId;
}

/// Runs a future whose lookups count towards the share of this organization. Without, they are the deployment's
/// own, which has no share. A spawned task does not inherit it.
pub async fn for_org<F: Future>(org: OrgId, future: F) -> F::Output {
    ASKS.scope(org, future).await
}

/// Resolver with the system's configuration: `/etc/hosts`, then DNS as `/etc/resolv.conf` says. Other sources of
/// `/etc/nsswitch.conf` are not asked.
///
/// A lookup that is given up ends at once and frees its place, unlike one of the C library, which holds a thread
/// until its own time is over.
#[derive(Debug)]
pub struct SystemResolver {
    places: Shares<OrgId>,
    current: Mutex<Option<Current>>,
}

/// A resolver, and the files that it was made from.
#[derive(Debug)]
struct Current {
    resolver: TokioResolver,
    files: [Option<SystemTime>; 2],
    checked: Instant,
}

const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

impl Default for SystemResolver {
    fn default() -> Self {
        Self { places: Shares::new(NET_LOOKUPS_MAX, NET_LOOKUPS_PER_ORG_MAX), current: Mutex::default() }
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let lookup = async {
            let _place = self.places.take(ASKS.try_with(|org| *org).ok()).await;
            let found = self.current()?.lookup_ip(host).await.map_err(io::Error::other)?;
            Ok(found.iter().collect())
        };
        timeout(NET_RESOLVE_TIMEOUT, lookup).await?
    }
}

impl SystemResolver {
    /// The resolver for the files as they are: an address of a name server may change while the service runs.
    fn current(&self) -> io::Result<TokioResolver> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) =
            current.as_ref().filter(|current| current.checked.elapsed() < NET_FILES_INTERVAL)
        {
            return Ok(current.resolver.clone());
        }
        let changed = |path: &str| fs::metadata(path).and_then(|file| file.modified()).ok();
        let (files, checked) = (FILES.map(changed), Instant::now());
        match current.as_mut().filter(|current| current.files == files) {
            Some(current) => {
                current.checked = checked;
                Ok(current.resolver.clone())
            }
            None => {
                let resolver = of_system()?;
                *current = Some(Current { resolver: resolver.clone(), files, checked });
                Ok(resolver)
            }
        }
    }
}

fn of_system() -> io::Result<TokioResolver> {
    // As the C library does, without a file the server of this machine is asked.
    let (config, options) = match read_system_conf() {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(%error, "/etc/resolv.conf cannot be used; the name server of this machine is asked");
            let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (ResolverConfig::from_parts(None, Vec::new(), vec![local]), ResolverOpts::default())
        }
    };
    resolver(config, options)
}

fn resolver(config: ResolverConfig, mut options: ResolverOpts) -> io::Result<TokioResolver> {
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.cache_size = NET_LOOKUPS_CACHED_MAX;
    options.max_active_requests = NET_LOOKUPS_MAX;
    (options.negative_max_ttl, options.positive_max_ttl) =
        (Some(NET_LOOKUP_TTL_MAX.0), Some(NET_LOOKUP_TTL_MAX.1));
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(io::Error::other)
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
    use hickory_resolver::config::ConnectionConfig;
    use tokio::{net::UdpSocket, task::JoinSet};

    use super::*;
    use crate::net::Policy;

    /// A resolver whose only name server answers every name but `silent*` with 192.0.2.1.
    async fn with_name_server(tasks: &mut JoinSet<()>) -> SystemResolver {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let at = socket.local_addr().expect("an address");
        tasks.spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                let question = &question[..length];
                if question[13..].starts_with(b"silent") {
                    continue;
                }
                // Name with its final zero, type and class follow the header of 12 bytes (RFC 1035, section 4).
                let name = question[12..].iter().position(|byte| *byte == 0).expect("a name") + 1;
                let end = 12 + name + 4;
                let is_a = question[end - 3] == 1;
                let mut answer = question[..end].to_vec();
                answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
                if is_a {
                    answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
                }
                let _ = socket.send_to(&answer, from).await;
            }
        });
        let mut udp = ConnectionConfig::udp();
        udp.port = at.port();
        let server = NameServerConfig::new(at.ip(), true, vec![udp]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let current = Current {
            resolver: resolver(config, ResolverOpts::default()).expect("a resolver"),
            files: [None; 2],
            checked: Instant::now() + std::time::Duration::from_secs(3_600),
        };
        SystemResolver { current: Mutex::new(Some(current)), ..SystemResolver::default() }
    }

    #[tokio::test]
    async fn names_that_are_not_answered_hold_only_their_organizations_places() {
        let mut tasks = JoinSet::new();
        let resolver = Arc::new(with_name_server(&mut tasks).await);
        let (greedy, other) =
            (OrgId::from_uuid(uuid::Uuid::from_u128(1)), OrgId::from_uuid(uuid::Uuid::from_u128(2)));
        let mut silent = JoinSet::new();
        for at in 0..4 * NET_LOOKUPS_MAX {
            let resolver = Arc::clone(&resolver);
            let name = format!("silent{at}.example.");
            silent.spawn(for_org(greedy, async move { resolver.resolve(&name).await }));
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let asked = Instant::now();
        let address = vec![IpAddr::from([192, 0, 2, 1])];
        assert_eq!(for_org(other, resolver.resolve("a.example.")).await.expect("an answer"), address);
        assert_eq!(resolver.resolve("b.example.").await.expect("an answer"), address);
        assert!(asked.elapsed() < NET_RESOLVE_TIMEOUT / 2, "{:?}", asked.elapsed());
        // A lookup that is given up frees its place at once, long before the name server's time is over.
        silent.shutdown().await;
        assert_eq!(for_org(greedy, resolver.resolve("c.example.")).await.expect("an answer"), address);
        assert!(asked.elapsed() < NET_RESOLVE_TIMEOUT / 2, "{:?}", asked.elapsed());
    }

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
