//! TLS of outgoing connections: ring, and Mozilla's roots built into the binary.
//!
//! Called by `client` and `dial`, and once by the composition root. Roots are not read from the machine, so
//! an image without certificates works too.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Installs ring as the TLS provider of the process. Idempotent.
///
/// rustls does not choose between providers itself; code that builds a TLS configuration without a provider
/// needs this first.
pub fn install_tls() {
    // An error means that a provider is already installed.
    let _ = ring::default_provider().install_default();
}

/// TLS configuration of every HTTP client of this module.
pub(super) fn config() -> ClientConfig {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    // reqwest uses a preconfigured TLS configuration unchanged: without `h2` here, every connection would use
    // HTTP/1.1.
    with_roots(roots, &[b"h2", b"http/1.1"])
}

/// TLS configuration with these roots and ALPN protocols.
pub(super) fn with_roots(roots: RootCertStore, protocols: &[&[u8]]) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
