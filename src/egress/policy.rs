//! Network policy of an environment, evaluated per connection and request.
//!
//! Called by `proxy` and `exchange`; pure. Hosts are canonical and paths are normalized by the URL standard
//! before evaluation, because the evaluated request is exactly the one that is sent.

use super::{
    decision::{Manner, Reason},
    registry::{Registries, Rule},
};
use crate::domain::network::{BadHost, HostPattern, NetworkPolicy};

/// Egress rules of a sandbox.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// Addresses that an allowed request may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those that an organization's own hosts may have.
    Public,
    /// Every address: the operator configured the destination.
    Any,
}

impl Policy {
    /// Rules of an environment; includes `registries` if it allows package managers.
    ///
    /// # Errors
    /// A rule has an invalid host, although a policy is validated when it is stored.
    pub fn new(policy: &NetworkPolicy, registries: &Registries) -> Result<Self, BadHost> {
        let rules = policy.allow.iter().cloned().map(|rule| {
            Ok(Rule {
                host: HostPattern::parse(&rule.host)?,
                port: rule.port,
                methods: rule.methods,
                path_prefix: rule.path_prefix,
                is_trusted: false,
            })
        });
        let mut rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
        if policy.allow_package_managers {
            rules.extend(registries.rules.iter().cloned());
        }
        Ok(Self { rules })
    }

    /// Policy that allows only package registries.
    pub fn of_registries(registries: &Registries) -> Self {
        Self { rules: registries.rules.clone() }
    }

    /// Handling of a CONNECT to this host, or the reason of its denial.
    pub fn connect(&self, host: &str, port: u16, is_bound: bool) -> Result<Manner, Reason> {
        let rules = self.rules_of(host, port)?;
        let is_open = |rule: &&Rule| rule.methods.is_empty() && rule.path_prefix.is_none();
        // Only a request shows whether it is one to the operator's mirror.
        let is_mirror = rules.iter().any(|rule| rule.is_trusted);
        match !is_bound && !is_mirror && rules.iter().any(is_open) {
            true => Ok(Manner::Tunnel),
            false => Ok(Manner::Inspected),
        }
    }

    /// Whether a request is allowed, and to which addresses. `path` is without its query.
    pub fn request(&self, host: &str, port: u16, method: &str, path: &str) -> Result<Addresses, Reason> {
        let rules = self.rules_of(host, port)?;
        let by_path: Vec<_> = rules.into_iter().filter(|rule| rule.has_path(path)).collect();
        if by_path.is_empty() {
            return Err(Reason::Path);
        }
        let has_method =
            |rule: &&Rule| rule.methods.is_empty() || rule.methods.iter().any(|one| one == method);
        let mut allowing = by_path.iter().copied().filter(has_method).peekable();
        if allowing.peek().is_none() {
            return Err(Reason::Method);
        }
        Ok(if allowing.any(|rule| rule.is_trusted) { Addresses::Any } else { Addresses::Public })
    }

    fn rules_of(&self, host: &str, port: u16) -> Result<Vec<&Rule>, Reason> {
        let by_host: Vec<_> = self.rules.iter().filter(|rule| rule.host.matches(host)).collect();
        if by_host.is_empty() {
            return Err(Reason::Host);
        }
        let by_port: Vec<_> = by_host.into_iter().filter(|rule| rule.port == port).collect();
        if by_port.is_empty() { Err(Reason::Port) } else { Ok(by_port) }
    }
}

/// Parts of escapes that could lead out of a prefix, in lower case: of a backslash, a dot, an escape, control
/// characters, and of UTF-8 that is longer than it has to be.
const ESCAPES: [&str; 11] = ["%5c", "%2e", "%25", "%0", "%1", "%7f", "%c0", "%c1", "%e0%8", "%e0%9", "%f0%8"];

impl Rule {
    fn has_path(&self, path: &str) -> bool {
        let Some(prefix) = &self.path_prefix else { return true };
        // A host may decode an escape, which changes the path, so paths that could leave the prefix match none.
        // npm escapes the separator of a scope (`/@scope%2fname`), so one that stays below the prefix is allowed.
        let path_in_lower_case = path.to_ascii_lowercase();
        let decoded = path_in_lower_case.replace("%2f", "/").replace("%3b", ";").replace("%20", " ");
        // Some hosts drop the parameters and the spaces of a segment.
        let name = |segment: &str| segment.split(';').next().unwrap_or_default().trim().to_owned();
        if ESCAPES.iter().any(|escape| path_in_lower_case.contains(escape))
            || decoded.split('/').map(name).any(|segment| segment == ".." || segment == ".")
        {
            return false;
        }
        match path.strip_prefix(prefix.as_str()) {
            Some(rest) => prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::network::EgressRule;

    fn policy(rules: &[(&str, u16, &[&str], Option<&str>)]) -> Policy {
        let rule = |(host, port, methods, prefix): &(&str, u16, &[&str], Option<&str>)| EgressRule {
            host: (*host).to_owned(),
            port: *port,
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
            path_prefix: prefix.map(str::to_owned),
        };
        let allow = rules.iter().map(rule).collect();
        Policy::new(&NetworkPolicy { allow, ..NetworkPolicy::default() }, &Registries::default()).unwrap()
    }

    #[test]
    fn nothing_is_allowed_that_no_rule_names() {
        let none = Policy::default();
        assert_eq!(none.connect("a.example", 443, false), Err(Reason::Host));
        let one = policy(&[("a.example", 443, &[], None)]);
        assert_eq!(one.connect("a.example", 443, false), Ok(Manner::Tunnel));
        assert_eq!(one.connect("a.example", 443, true), Ok(Manner::Inspected));
        assert_eq!(one.connect("a.example", 80, false), Err(Reason::Port));
        assert_eq!(one.connect("b.a.example", 443, false), Err(Reason::Host));
        assert_eq!(one.connect("a.example.evil", 443, false), Err(Reason::Host));
    }

    #[test]
    fn a_rule_of_methods_or_paths_is_read() {
        let some =
            policy(&[("a.example", 443, &["GET"], Some("/v1")), ("a.example", 443, &[], Some("/open/"))]);
        assert_eq!(some.connect("a.example", 443, false), Ok(Manner::Inspected));
        for (method, path, outcome) in [
            ("GET", "/v1", Ok(Addresses::Public)),
            ("GET", "/v1/x", Ok(Addresses::Public)),
            ("GET", "/v1/@scope%2fname", Ok(Addresses::Public)),
            ("GET", "/v1%2fx", Err(Reason::Path)),
            ("GET", "/v10", Err(Reason::Path)),
            ("GET", "/V1", Err(Reason::Path)),
            ("POST", "/v1", Err(Reason::Method)),
            ("get", "/v1", Err(Reason::Method)),
            ("POST", "/open/x", Ok(Addresses::Public)),
            ("POST", "/open", Err(Reason::Path)),
            ("GET", "/v1/%2F..%2fadmin", Err(Reason::Path)),
            ("GET", "/v1/..%5Cadmin", Err(Reason::Path)),
            ("GET", "/v1/..;/admin", Err(Reason::Path)),
            ("GET", "/v1/..%3Bx=y/admin", Err(Reason::Path)),
            ("GET", "/v1/..%20/admin", Err(Reason::Path)),
            ("GET", "/v1/..%09/admin", Err(Reason::Path)),
            ("GET", "/v1/%252e%252e/admin", Err(Reason::Path)),
            ("GET", "/v1/%C0%AE%C0%AE/admin", Err(Reason::Path)),
            ("GET", "/v1/%e0%80%ae./admin", Err(Reason::Path)),
            ("GET", "/v1/a;b/%C3%A9%20c", Ok(Addresses::Public)),
            ("GET", "/", Err(Reason::Path)),
        ] {
            assert_eq!(some.request("a.example", 443, method, path), outcome, "{method} {path}");
        }
    }
}
