//! Secrets of an environment: which hosts may receive a value, and in which places of a request.
//!
//! Validated where an environment is stored, pinned in `session.created` with a placeholder, enforced by `egress`.
//! Pure: rules and their error messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    network::{EgressRule, HostPattern},
    problem::Problem,
};

/// A secret of an environment without its value, and the hosts that may receive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretBinding {
    /// The environment variable that holds the placeholder in the sandbox.
    pub name: String,
    /// Hosts to which the placeholder is replaced by the value; the network policy must allow each
    /// one.
    pub hosts: Vec<String>,
    /// Request headers in which the placeholder may stand; `authorization`, with the schemes Bearer, Basic and every
    /// other, unless given. Elsewhere the request is refused.
    #[serde(default = "authorization")]
    #[schema(required)]
    pub headers: Vec<String>,
    /// Parameters of the query in which the placeholder may stand.
    #[serde(default)]
    #[schema(required)]
    pub query_parameters: Vec<String>,
}

/// A secret of a session; immutable except for its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinnedSecret {
    #[serde(flatten)]
    pub binding: SecretBinding,
    /// Placeholder that the sandbox sees instead of the value; unique to this session.
    pub placeholder: String,
}

/// Max number of secrets of one environment, and of hosts of one secret.
pub(crate) const SECRETS_MAX: usize = 32;
const SECRET_HOSTS_MAX: usize = 16;
/// Max number of headers and of query parameters in which one secret may stand, and the length of a name.
const SECRET_PLACES_MAX: usize = 8;
const SECRET_PLACE_BYTES_MAX: usize = 64;
/// Headers that the proxy sets or that the connection needs.
const NO_SECRET_HEADERS: [&str; 9] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Min and max length of a secret's value. Replacing a shorter value in responses would also alter
/// unrelated text.
const SECRET_BYTES: (usize, usize) = (8, 4_096);

/// Returns the first invalid field of an environment's secrets. `variables` are its own, `allow` is its network policy.
pub(super) fn problem(
    secrets: &[SecretBinding],
    variables: &BTreeMap<String, String>,
    allow: &[EgressRule],
) -> Option<Problem> {
    if secrets.len() > SECRETS_MAX {
        return Some(("secrets".to_owned(), format!("must have at most {SECRETS_MAX} items")));
    }
    secrets.iter().enumerate().find_map(|(at, secret)| {
        let is_taken = variables.contains_key(&secret.name)
            || secrets[..at].iter().any(|other| other.name == secret.name);
        let (field, words) = secret_problem(secret, is_taken, allow)?;
        Some((format!("secrets[{at}].{field}"), words))
    })
}

fn secret_problem(
    secret: &SecretBinding,
    is_taken: bool,
    allow: &[EgressRule],
) -> Option<(&'static str, String)> {
    if !is_variable(&secret.name) {
        return Some(("name", "must be letters, digits and underscores".to_owned()));
    }
    if is_taken {
        return Some(("name", "is used twice".to_owned()));
    }
    if secret.hosts.is_empty() || secret.hosts.len() > SECRET_HOSTS_MAX {
        return Some(("hosts", format!("must list 1 to {SECRET_HOSTS_MAX} hosts")));
    }
    if let Some(problem) = placement_problem(secret) {
        return Some(problem);
    }
    secret.hosts.iter().find_map(|host| match HostPattern::parse(host) {
        Err(bad) => Some(("hosts", format!("{host}: {bad}"))),
        Ok(pattern) if allow.iter().any(|rule| covers(rule, &pattern)) => None,
        Ok(_) => Some(("hosts", format!("{host}: the network policy does not allow this host"))),
    })
}

/// Returns whether a text is the name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&name.len()) && name.bytes().all(rest) && !name.as_bytes()[0].is_ascii_digit()
}

/// Returns whether a secret's value is valid: it must fit in a header and be removable from
/// responses.
pub(crate) fn is_secret_value(value: &str) -> bool {
    (SECRET_BYTES.0..=SECRET_BYTES.1).contains(&value.len())
        && value.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

fn placement_problem(secret: &SecretBinding) -> Option<(&'static str, String)> {
    let SecretBinding { headers, query_parameters, .. } = secret;
    let too_many = format!("must list at most {SECRET_PLACES_MAX} names");
    let fits = |name: &String| (1..=SECRET_PLACE_BYTES_MAX).contains(&name.len());
    let is_header = |name: &String| {
        fits(name) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let is_parameter = |name: &String| {
        fits(name) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~[]".contains(&byte))
    };
    if headers.is_empty() && query_parameters.is_empty() {
        return Some(("headers", "must name a header, or query_parameters a parameter".to_owned()));
    }
    if headers.len() > SECRET_PLACES_MAX {
        return Some(("headers", too_many));
    }
    if query_parameters.len() > SECRET_PLACES_MAX {
        return Some(("query_parameters", too_many));
    }
    if let Some(bad) = headers.iter().find(|name| !is_header(name)) {
        return Some(("headers", format!("{bad}: must be the name of a header")));
    }
    let is_reserved = |name: &&String| NO_SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str());
    if let Some(bad) = headers.iter().find(is_reserved) {
        return Some(("headers", format!("{bad}: this header cannot hold a secret")));
    }
    let bad = query_parameters.iter().find(|name| !is_parameter(name))?;
    Some(("query_parameters", format!("{bad}: must be letters, digits and any of -_.~[]")))
}

/// The header of a secret that names no other place.
pub(crate) fn authorization() -> Vec<String> {
    vec!["authorization".to_owned()]
}

fn covers(rule: &EgressRule, pattern: &HostPattern) -> bool {
    HostPattern::parse(&rule.host).is_ok_and(|host| host.covers(pattern))
}
