//! Destinations that organizations may reach, from the operator's settings.

use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::{
    base::{
        limit::{EGRESS_CONNECTIONS_PER_ORG, EGRESS_CONNECTIONS_PER_PROCESS},
        shares::Shares,
    },
    config::Settings,
    egress::Registries,
    lifecycle::Network,
    net::{self, LocalDirectories},
};

pub(super) fn org_client(
    settings: &Settings,
    allow_private: bool,
    resolver: &Arc<net::SystemResolver>,
) -> net::Client {
    net::Client::new(policy(settings, allow_private), Arc::clone(resolver) as _)
}

/// Addresses that organizations may reach.
pub(super) fn policy(settings: &Settings, allow_private: bool) -> net::Policy {
    net::Policy { allow_private, denied: net::Denied::new(settings.deny_cidrs.clone()) }
}

/// Local directories that sources may use.
pub(super) fn local_sources(settings: &Settings) -> anyhow::Result<LocalDirectories> {
    let named: Vec<_> = settings.local_sources.iter().filter(|path| !path.as_os_str().is_empty()).collect();
    LocalDirectories::new(&named).context("SOJOURN_LOCAL_SOURCES names a directory that cannot be read")
}

/// Network access of sandboxes.
pub(super) fn network(settings: &Settings, resolver: &Arc<net::SystemResolver>) -> anyhow::Result<Network> {
    let extra_roots = match &settings.egress_ca_file {
        None => Vec::new(),
        Some(file) => CertificateDer::pem_file_iter(file)
            .and_then(|certificates| certificates.collect::<Result<_, _>>())
            .with_context(|| format!("SOJOURN_EGRESS_CA_FILE: {} cannot be read", file.display()))?,
    };
    let policy = policy(settings, settings.allow_private_egress);
    let dialer = net::Dialer::new(policy, Arc::clone(resolver) as _, &extra_roots)
        .context("SOJOURN_EGRESS_CA_FILE contains an invalid CA certificate")?;
    let mirrors = [&settings.apt_mirror, &settings.pip_index, &settings.npm_registry];
    let mirrors: Vec<_> = mirrors.into_iter().flatten().collect();
    let registries = Arc::new(Registries::new(&mirrors));
    let connections = Arc::new(Shares::new(EGRESS_CONNECTIONS_PER_PROCESS, EGRESS_CONNECTIONS_PER_ORG));
    Ok(Network { dialer, extra_roots: extra_roots.into(), registries, connections })
}
