//! Package registries: the hosts that package managers may reach.
//!
//! Created by the composition root from the operator's settings; used by `lifecycle` for sandboxes whose
//! environment allows package managers, and for the containers in which packages are installed. A mirror that
//! the operator configured may have any address; a rule of an organization cannot achieve that.

use url::Url;

use crate::domain::network::{HostPattern, canonical};

/// Public package registries with their ports: Debian, Python, npm, Rust, Ruby and Java. Those of Go are not among
/// them: they fetch modules from whatever host the path of a request names, which would see what the path says.
pub const PUBLIC: [(&str, u16); 13] = [
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
    ("rubygems.org", 443),
    ("index.rubygems.org", 443),
    ("repo.maven.apache.org", 443),
];
/// Hosts of package files, for indexes that store them on another host.
const FILES_OF: [(&str, &str); 1] = [("pypi.org", "files.pythonhosted.org")];
/// Methods of a request to a registry: packages are read, and nothing is published.
const METHODS: [&str; 2] = ["GET", "HEAD"];
/// Last path segments of a Python index, whose files are beside it.
const PYTHON_INDEXES: [&str; 2] = ["simple", "+simple"];

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
        let rule = |host: &str, port: u16, path_prefix: Option<String>, is_trusted: bool| Rule {
            host: HostPattern::Exact(host.to_owned()),
            port,
            methods: METHODS.map(str::to_owned).to_vec(),
            path_prefix,
            is_trusted,
        };
        let mut rules: Vec<_> = PUBLIC.iter().map(|(host, port)| rule(host, *port, None, false)).collect();
        for url in mirrors {
            // Addresses and other schemes are rejected when the settings are read.
            let (Some(Ok(host)), Some(port)) = (url.host_str().map(canonical), url.port_or_known_default())
            else {
                continue;
            };
            rules.push(rule(&host, port, prefix(url), true));
            let files = FILES_OF.iter().filter(|(index, _)| *index == host);
            rules.extend(files.map(|(_, files)| rule(files, port, None, true)));
        }
        Self { rules }
    }
}

/// Path of a mirror, below which its index and files are; `None` for all of the host.
fn prefix(url: &Url) -> Option<String> {
    let mut segments: Vec<_> = url.path_segments()?.filter(|segment| !segment.is_empty()).collect();
    if segments.last().is_some_and(|last| PYTHON_INDEXES.contains(last)) {
        segments.pop();
    }
    (!segments.is_empty()).then(|| format!("/{}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::network::{EgressRule, NetworkPolicy},
        egress::{Addresses, Manner, Policy, Reason},
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
            ..NetworkPolicy::default()
        };
        let own = Policy::new(&org, &registries).unwrap();
        let get = |policy: &Policy, host, port, path| policy.request(host, port, "GET", path);
        assert_eq!(own.connect("mirror.internal", 8081, false), Ok(Manner::Tunnel));
        let named = get(&own, "mirror.internal", 8081, "/debian/x");
        assert_eq!(named, Ok(Addresses::Public), "naming a mirror does not make it one");
        assert_eq!(own.connect("pypi.org", 443, false), Err(Reason::Host));
        let both = NetworkPolicy { allow_package_managers: true, ..org };
        let both = Policy::new(&both, &registries).unwrap();
        assert_eq!(both.connect("mirror.internal", 8081, false), Ok(Manner::Inspected));
        assert_eq!(get(&both, "mirror.internal", 8081, "/debian/x"), Ok(Addresses::Any));
        assert_eq!(get(&both, "mirror.internal", 8081, "/admin"), Ok(Addresses::Public));
        assert_eq!(get(&both, "files.pythonhosted.org", 443, "/packages/x"), Ok(Addresses::Any));
        assert_eq!(get(&both, "other.internal", 443, "/"), Ok(Addresses::Public));
        assert_eq!(get(&both, "mirror.internal", 443, "/debian/x"), Err(Reason::Port));
        let registry = get(&both, "deb.debian.org", 80, "/debian/x");
        assert_eq!(registry, Ok(Addresses::Public), "a public registry has a public address");
        for (host, port) in PUBLIC {
            assert_eq!(both.connect(host, port, false), Ok(Manner::Inspected), "{host}:{port}");
            for method in ["PUT", "POST", "DELETE"] {
                assert_eq!(
                    both.request(host, port, method, "/x"),
                    Err(Reason::Method),
                    "{method} {host}:{port}"
                );
            }
        }
        assert_eq!(both.connect("proxy.golang.org", 443, false), Err(Reason::Host));
        assert_eq!(both.connect("elsewhere.example", 443, false), Err(Reason::Host));
    }

    #[test]
    fn a_mirror_is_its_path_and_a_python_index_has_its_files_beside_it() {
        for (url, path) in [
            ("https://pypi.org/simple", None),
            ("https://nexus.internal/repository/pypi/simple/", Some("/repository/pypi")),
            ("https://devpi.internal/root/pypi/+simple/", Some("/root/pypi")),
            ("https://nexus.internal/repository/npm/", Some("/repository/npm")),
            ("http://mirror.internal/debian", Some("/debian")),
            ("http://mirror.internal", None),
        ] {
            assert_eq!(prefix(&url.parse().unwrap()).as_deref(), path, "{url}");
        }
    }
}
