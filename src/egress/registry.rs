//! Package registries: the hosts that package managers may reach.
//!
//! Created by the composition root from the operator's settings; used by `lifecycle` for sandboxes whose
//! environment allows package managers, and for the containers in which packages are installed. A mirror that
//! the operator configured may have any address; a rule of an organization cannot achieve that.

use url::Url;

use crate::domain::network::{HostPattern, canonical};

/// Public package registries with their ports: Debian, Python, npm, Rust, Go, Ruby and Java.
pub const PUBLIC: [(&str, u16); 15] = [
    ("deb.debian.org", 80),
    ("deb.debian.org", 443),
    ("security.debian.org", 80),
    ("security.debian.org", 443),
    ("pypi.org", 443),
    ("files.pythonhosted.org", 443),
    ("registry.npmjs.org", 443),
    ("crates.io", 443),
    ("index.crates.io", 443),
    ("static.crates.io", 443),
    ("proxy.golang.org", 443),
    ("sum.golang.org", 443),
    ("rubygems.org", 443),
    ("index.rubygems.org", 443),
    ("repo.maven.apache.org", 443),
];
/// Hosts of package files, for indexes that store them on another host.
const FILES_OF: [(&str, &str); 1] = [("pypi.org", "files.pythonhosted.org")];

/// One allowed destination.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub host: HostPattern,
    pub port: u16,
    pub methods: Vec<String>,
    pub path_prefix: Option<String>,
    /// Whether the operator configured the host, which then may have any address.
    pub is_trusted: bool,
}

/// Egress rules of package registries.
#[derive(Clone, Debug, Default)]
pub struct Registries {
    pub(super) rules: Vec<Rule>,
}

impl Registries {
    /// Rules for the public registries and the operator's mirrors.
    pub fn new(mirrors: &[&Url]) -> Self {
        let rule = |host: &str, port: u16, is_trusted: bool| Rule {
            host: HostPattern::Exact(host.to_owned()),
            port,
            methods: Vec::new(),
            path_prefix: None,
            is_trusted,
        };
        let mut rules: Vec<_> = PUBLIC.iter().map(|(host, port)| rule(host, *port, false)).collect();
        for url in mirrors {
            // Addresses and other schemes are rejected when the settings are read.
            let (Some(Ok(host)), Some(port)) = (url.host_str().map(canonical), url.port_or_known_default())
            else {
                continue;
            };
            rules.push(rule(&host, port, true));
            let files = FILES_OF.iter().filter(|(index, _)| *index == host);
            rules.extend(files.map(|(_, files)| rule(files, port, true)));
        }
        Self { rules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::network::{EgressRule, NetworkPolicy},
        egress::{Manner, Policy, Reason},
    };

    #[test]
    fn the_operators_mirrors_are_trusted_and_nothing_that_an_organization_names() {
        let mirror: Url = "http://mirror.internal:8081/debian".parse().unwrap();
        let registries = Registries::new(&[&mirror, &"https://pypi.org/simple".parse().unwrap()]);
        let rule = |host: &str, port| EgressRule {
            host: host.to_owned(),
            port,
            methods: Vec::new(),
            path_prefix: None,
        };
        let org = NetworkPolicy {
            allow: vec![rule("mirror.internal", 8081), rule("other.internal", 443)],
            allow_package_managers: false,
        };
        let own = Policy::new(&org, &registries).unwrap();
        assert_eq!(own.connect("mirror.internal", 8081, false), Ok(Manner::Tunnel));
        assert!(!own.is_trusted("mirror.internal", 8081), "naming a mirror does not make it one");
        assert_eq!(own.connect("pypi.org", 443, false), Err(Reason::Host));
        let both = NetworkPolicy { allow_package_managers: true, ..org };
        let both = Policy::new(&both, &registries).unwrap();
        assert!(both.is_trusted("mirror.internal", 8081) && both.is_trusted("files.pythonhosted.org", 443));
        assert!(!both.is_trusted("mirror.internal", 443) && !both.is_trusted("other.internal", 443));
        assert!(!both.is_trusted("deb.debian.org", 80), "a public registry has a public address");
        for (host, port) in PUBLIC {
            assert_eq!(both.connect(host, port, false), Ok(Manner::Tunnel), "{host}:{port}");
        }
        assert_eq!(both.connect("elsewhere.example", 443, false), Err(Reason::Host));
    }
}
