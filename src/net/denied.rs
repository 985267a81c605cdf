//! Addresses that organizations may not reach although they are public: this machine's own, and networks that
//! the operator denies.
//!
//! Called by `url` for each address. An address of an interface is public on many machines; a service that
//! listens on all interfaces would be reached past the firewall in front of it. In IPv6 the whole network of an
//! interface is refused, because its hosts are neighbors behind the same router.

use std::{
    fmt, io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ipnet::IpNet;

/// Time for which the addresses of the interfaces are known.
const INTERFACES_READ_EVERY: Duration = Duration::from_secs(10);

/// Denied networks and the addresses of this machine. Cheap to clone.
#[derive(Clone)]
pub struct Denied(Arc<Inner>);

struct Inner {
    networks: Vec<IpNet>,
    interfaces: fn() -> io::Result<Vec<IpNet>>,
    own: Mutex<Option<(Instant, Vec<IpNet>)>>,
}

impl Denied {
    /// Denies these networks, and the addresses of this machine's interfaces.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self::with(networks, interfaces)
    }

    /// As `new`, with another source of the interfaces' addresses and networks.
    pub fn with(networks: Vec<IpNet>, interfaces: fn() -> io::Result<Vec<IpNet>>) -> Self {
        Self(Arc::new(Inner { networks, interfaces, own: Mutex::default() }))
    }

    /// Whether the operator denied the address.
    pub(super) fn is_denied(&self, ip: IpAddr) -> bool {
        self.0.networks.iter().any(|network| network.contains(&ip))
    }

    /// Whether the address belongs to this machine or, with IPv6, to its network. Nothing is public while the
    /// interfaces cannot be read.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        let mut own = self.0.own.lock().unwrap_or_else(PoisonError::into_inner);
        if own.as_ref().is_none_or(|(read_at, _)| read_at.elapsed() >= INTERFACES_READ_EVERY) {
            *own = match (self.0.interfaces)() {
                Ok(found) => Some((Instant::now(), found)),
                Err(error) => {
                    tracing::error!(%error, "the addresses of this machine cannot be read; none is connected to");
                    None
                }
            };
        }
        own.as_ref().is_none_or(|(_, found)| found.iter().any(|one| one.contains(&ip)))
    }
}

impl Default for Denied {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl fmt::Debug for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Denied").field(&self.0.networks).finish()
    }
}

/// Addresses of the interfaces; of IPv6 ones with their networks.
fn interfaces() -> io::Result<Vec<IpNet>> {
    let found = if_addrs::get_if_addrs()?.into_iter().map(|interface| match interface.addr {
        if_addrs::IfAddr::V4(v4) => IpNet::from(IpAddr::V4(v4.ip)),
        if_addrs::IfAddr::V6(v6) => {
            let ip = IpAddr::V6(v6.ip);
            IpNet::new(ip, v6.prefixlen).unwrap_or_else(|_| IpNet::from(ip))
        }
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> Denied {
        let networks = vec!["198.41.0.0/24".parse().expect("a network")];
        Denied::with(networks, || {
            Ok(["93.184.215.14/32", "2606:4700:1:2::5/64"]
                .map(|one| one.parse().expect("a network"))
                .to_vec())
        })
    }

    #[test]
    fn own_addresses_and_denied_networks_are_told() {
        let denied = denied();
        let ip = |text: &str| text.parse().expect("an address");
        assert!(denied.is_denied(ip("198.41.0.4")) && !denied.is_denied(ip("198.41.1.4")));
        assert!(denied.is_own(ip("93.184.215.14")) && !denied.is_own(ip("93.184.215.15")));
        assert!(denied.is_own(ip("2606:4700:1:2::99")) && !denied.is_own(ip("2606:4700:1:3::99")));
    }

    #[test]
    fn nothing_is_connected_to_while_the_interfaces_are_unknown() {
        let denied = Denied::with(Vec::new(), || Err(io::ErrorKind::PermissionDenied.into()));
        assert!(denied.is_own("1.1.1.1".parse().expect("an address")));
    }

    #[test]
    fn the_loopback_interface_of_this_machine_is_found() {
        let found = interfaces().expect("they can be read");
        assert!(found.iter().any(|one| one.contains(&IpAddr::from([127, 0, 0, 1]))), "{found:?}");
    }
}
