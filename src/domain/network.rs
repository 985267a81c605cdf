//! Network policy of a sandbox, and canonical host names.
//!
//! Validated where an environment is stored, evaluated by `egress` for every connection. Both parse
//! a host with [`canonical`], so that no spelling is accepted by one and interpreted differently by
//! the other. A policy lists host names, never addresses.

use serde::{Deserialize, Serialize};
use url::Host;
use utoipa::ToSchema;

use crate::base::json;

/// Hosts that a sandbox may connect to. Everything else is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkPolicy {
    /// At most 64 rules; a rule allows requests that match all of its fields.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "json::objects")]
    pub allow: Vec<EgressRule>,
    /// Whether to also allow reading (GET and HEAD) from the package registries (Debian, Python, npm, Rust, Ruby, Java)
    /// and the operator's mirrors of them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_package_managers: bool,
    /// Whether the agent may use MCP servers, which are reached from outside of the sandbox (default true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_mcp_servers: Option<bool>,
}

/// One rule of allowed egress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressRule {
    /// `api.example.com`, or `*.example.com` for every subdomain; never an address.
    pub host: String,
    /// 443 when absent. On any other port, plain HTTP is allowed too.
    #[serde(default = "https")]
    pub port: u16,
    /// HTTP methods, such as `GET`; every method when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Matches whole path segments: `/v1` matches `/v1` and paths below it, not `/v10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_prefix: Option<String>,
}

/// Hosts that a rule or a secret applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Exactly this name.
    Exact(String),
    /// Every subdomain of this name.
    Below(String),
}

/// Places in a request where a secret's placeholder is replaced by its value. Names of headers are compared without
/// case, those of parameters exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretPlacement {
    pub headers: Vec<String>,
    pub query_parameters: Vec<String>,
}

impl SecretPlacement {
    /// Whether the placeholder may stand in this header.
    pub fn allows_header(&self, name: &str) -> bool {
        self.headers.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }

    /// Whether the placeholder may stand in this parameter of the query.
    pub fn allows_parameter(&self, name: &str) -> bool {
        self.query_parameters.iter().any(|allowed| allowed == name)
    }
}

/// Reason why a host is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHost {
    #[error("must be a host name")]
    Name,
    #[error("must be a host name, not an address")]
    Address,
    #[error("`*` is allowed only as the first label, before at least two labels, such as `*.example.com`")]
    Wildcard,
}

/// Max number of rules of one policy.
const RULES_MAX: usize = 64;
/// Max length of a host name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
/// Max length of a path prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 512;

const fn https() -> u16 {
    443
}

/// Returns a host name in canonical form: lower case, ASCII, no trailing dot.
///
/// # Errors
/// If it is not a host name, or if it is an address in any spelling (decimal, octal, hexadecimal,
/// full-width digits), because the WHATWG URL standard accepts them all.
pub fn canonical(host: &str) -> Result<String, BadHost> {
    match Host::parse(host).map_err(|_| BadHost::Name)? {
        Host::Ipv4(_) | Host::Ipv6(_) => Err(BadHost::Address),
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            let is_label = |label: &str| {
                let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
                (1..=63).contains(&label.len()) && label.bytes().all(inner)
            };
            let valid = name.len() <= HOST_BYTES_MAX && name.split('.').all(is_label);
            if valid { Ok(name.to_owned()) } else { Err(BadHost::Name) }
        }
    }
}

impl HostPattern {
    /// Parses a host, or `*.` and a host.
    pub fn parse(text: &str) -> Result<Self, BadHost> {
        match text.strip_prefix("*.") {
            None if text.contains('*') => Err(BadHost::Wildcard),
            None => Ok(Self::Exact(canonical(text)?)),
            Some(rest) => match canonical(rest)? {
                name if name.contains('.') => Ok(Self::Below(name)),
                _ => Err(BadHost::Wildcard),
            },
        }
    }

    /// Returns whether a canonical host name matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Below(name) => {
                host.strip_suffix(name.as_str()).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
        }
    }

    /// Returns whether every host that `other` matches is matched by `self`.
    pub fn covers(&self, other: &Self) -> bool {
        match other {
            Self::Exact(name) => self.matches(name),
            Self::Below(name) => self == other || self.matches(name),
        }
    }
}

impl NetworkPolicy {
    /// Returns whether the agent may use MCP servers.
    pub fn allows_mcp_servers(&self) -> bool {
        self.allow_mcp_servers.unwrap_or(true)
    }

    /// Returns the first invalid field and the message for the caller.
    pub fn problem(&self) -> Option<(String, String)> {
        if self.allow.len() > RULES_MAX {
            return Some(("allow".to_owned(), format!("must have at most {RULES_MAX} rules")));
        }
        self.allow.iter().enumerate().find_map(|(at, rule)| {
            let (field, problem) = rule.problem()?;
            Some((format!("allow[{at}].{field}"), problem))
        })
    }
}

impl EgressRule {
    fn problem(&self) -> Option<(&'static str, String)> {
        if let Err(bad) = HostPattern::parse(&self.host) {
            return Some(("host", bad.to_string()));
        }
        if self.port == 0 {
            return Some(("port", "must be 1 to 65535".to_owned()));
        }
        let is_method = |method: &String| {
            (1..=20).contains(&method.len()) && method.bytes().all(|byte| byte.is_ascii_uppercase())
        };
        if self.methods.len() > 16 || !self.methods.iter().all(is_method) {
            return Some(("methods", "must be at most 16 upper-case method names, such as GET".to_owned()));
        }
        let is_plain = |prefix: &String| {
            prefix.starts_with('/')
                && prefix.len() <= PREFIX_BYTES_MAX
                && !prefix.split('/').any(|segment| segment == "." || segment == "..")
                && prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"%?#\\\"<>`{}".contains(&byte))
        };
        if self.path_prefix.as_ref().is_some_and(|prefix| !is_plain(prefix)) {
            let text = "must begin with `/` and contain no dot segments, escapes, `?` or `#`";
            return Some(("path_prefix", text.to_owned()));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (text, name) in [
            ("API.Example.COM", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("b\u{fc}cher.example", "xn--bcher-kva.example"),
            ("%61pi.example.com", "api.example.com"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(name), "{text}");
        }
    }

    #[test]
    fn no_spelling_of_an_address_is_a_name() {
        for text in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "\u{ff11}27.0.0.1",
            "127\u{3002}0.0.1",
            "0",
        ] {
            assert_eq!(canonical(text), Err(BadHost::Address), "{text}");
        }
        for text in ["", ".", "a..b", "a b", "a/b", "a:80", "user@a", "::1", "a\0b", "*.example.com"] {
            assert!(canonical(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wildcard_means_names_below_and_no_other() {
        let below = HostPattern::parse("*.Example.com").unwrap();
        assert!(below.matches("a.example.com") && below.matches("a.b.example.com"));
        for other in ["example.com", ".example.com", "aexample.com", "example.com.evil.test"] {
            assert!(!below.matches(other), "{other}");
        }
        for bad in ["*", "*.com", "a.*.com", "*a.example.com", "*.127.0.0.1"] {
            assert!(HostPattern::parse(bad).is_err(), "{bad}");
        }
        assert!(below.covers(&HostPattern::parse("*.a.example.com").unwrap()));
        assert!(!HostPattern::parse("a.example.com").unwrap().covers(&below));
    }

    #[test]
    fn a_rule_that_could_be_misread_is_refused() {
        let rule = |host: &str, method: &str, prefix: &str| EgressRule {
            host: host.to_owned(),
            port: 443,
            methods: vec![method.to_owned()],
            path_prefix: Some(prefix.to_owned()),
        };
        assert_eq!(rule("a.example", "GET", "/v1").problem(), None);
        for bad in [
            rule("10.0.0.1", "GET", "/"),
            rule("a.example", "get", "/"),
            rule("a.example", "GET", "v1"),
            rule("a.example", "GET", "/a/../b"),
            rule("a.example", "GET", "/a%2fb"),
        ] {
            assert!(bad.problem().is_some(), "{bad:?}");
        }
    }
}
