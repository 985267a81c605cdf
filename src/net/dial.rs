//! Connections to hosts that organizations supply, for protocols of the caller.
//!
//! Called by `egress`; calls the resolver and the network. A [`Route`] contains vetted addresses, and only a
//! route can be connected to: the vetted and the connected address cannot differ, whatever DNS returns in
//! between.

use std::{io, net::SocketAddr, sync::Arc};

use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};
use tokio::{net::TcpStream, time::timeout};

use super::{
    Policy, Refused, Resolver,
    resolve::Vetted,
    tls,
    url::{Named, check_name},
};
use crate::base::limit::NET_CONNECT_TIMEOUT;

/// Connects to vetted addresses only; cheap to clone.
#[derive(Clone)]
pub struct Dialer {
    vetted: Arc<Vetted>,
    /// For hosts that the operator configured.
    trusted: Arc<Vetted>,
    tls: Arc<ClientConfig>,
}

/// Addresses that may be connected to.
#[derive(Clone, Debug)]
pub struct Route(Vec<SocketAddr>);

impl Dialer {
    /// Creates a dialer. `extra_roots` are trusted in addition to the public ones, e.g. an operator's own
    /// authority.
    ///
    /// # Errors
    /// A root is not a valid certificate.
    pub fn new(
        policy: Policy,
        resolver: Arc<dyn Resolver>,
        extra_roots: &[CertificateDer<'static>],
    ) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        for root in extra_roots {
            roots.add(root.clone())?;
        }
        // The caller decides about plain text; addresses are always vetted as for TLS.
        let trusted = Vetted { resolver: Arc::clone(&resolver), named: Named::ByOperator, plain: false };
        let vetted = Vetted { resolver, named: Named::ByOrg(policy), plain: false };
        Ok(Self {
            vetted: Arc::new(vetted),
            trusted: Arc::new(trusted),
            tls: Arc::new(tls::with_roots(roots, &[b"http/1.1"])),
        })
    }

    /// Resolves a name to the addresses that may be connected to.
    ///
    /// # Errors
    /// The host has no address, or none that is allowed.
    pub async fn vet(&self, host: &str, port: u16) -> Result<Route, Refused> {
        route(&self.vetted, host, port).await
    }

    /// As `vet`, for a host that the operator configured: any address is allowed.
    ///
    /// # Errors
    /// The host has no address.
    pub async fn vet_trusted(&self, host: &str, port: u16) -> Result<Route, Refused> {
        route(&self.trusted, host, port).await
    }

    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// The last address's failure; the timeout applies to all addresses together.
    pub async fn connect(&self, route: &Route) -> io::Result<TcpStream> {
        let connected = timeout(NET_CONNECT_TIMEOUT, TcpStream::connect(route.0.as_slice())).await??;
        connected.set_nodelay(true)?;
        Ok(connected)
    }

    /// TLS configuration for such hosts: verified, HTTP/1.1.
    pub fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls)
    }
}

async fn route(vetted: &Vetted, host: &str, port: u16) -> Result<Route, Refused> {
    check_name(&vetted.named, host)?;
    if port == 0 {
        return Err(Refused::Port);
    }
    let found = vetted.vetted(host).await?;
    Ok(Route(found.into_iter().map(|at| SocketAddr::new(at.ip(), port)).collect()))
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dialer").field(&self.vetted.named).finish()
    }
}
