//! TLS of outgoing connections: ring, and Mozilla's roots built into the binary.
//!
//! Called by `client`, and once by the composition root. Roots are not read from
//! the machine, so a slim image without certificates works the same.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Makes ring the TLS provider of the process. Safe to call again.
///
/// Rustls refuses to choose between providers by itself; whatever builds a TLS
/// configuration without naming one needs this first.
pub fn install_tls() {
    // An error says that a provider is installed already, which is what is wanted.
    let _ = ring::default_provider().install_default();
}

/// The configuration of every client of this room.
pub(super) fn config() -> ClientConfig {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    // A preconfigured TLS configuration is used as it is: without the first protocol,
    // every connection would fall back to HTTP/1.1.
    with_roots(roots, &[b"h2", b"http/1.1"])
}

/// A configuration that trusts these roots and speaks these protocols.
pub(super) fn with_roots(roots: RootCertStore, protocols: &[&[u8]]) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
