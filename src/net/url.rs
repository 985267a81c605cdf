//! Checks of a URL before its name is resolved.
//!
//! Called by `client` before each request and by the code that stores an organization's URL; calls `address`.
//! Every spelling of an address (decimal, octal, hexadecimal, full-width digits, a trailing dot) is already
//! parsed into an address, because `url` follows the WHATWG URL standard.

use std::net::IpAddr;

use url::{Host, Url};

use super::{
    Policy,
    address::{Reach, reach},
};
use crate::base::limit::NET_URL_BYTES_MAX;

/// Reason why no connection was made. Nothing has left the process.
///
/// No text contains an address from DNS: otherwise an organization could read the operator's internal zone by
/// configuring webhooks to its names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("not an absolute URL: {0}")]
    Malformed(#[from] url::ParseError),
    #[error("a URL may have at most {NET_URL_BYTES_MAX} bytes")]
    TooLong,
    #[error("only https URLs are allowed")]
    NotHttps,
    #[error("plain http is allowed to private addresses only; use https")]
    PlainToPublic,
    #[error("a URL must not carry a user name or password")]
    Credentials,
    #[error("redirects to another origin are not followed")]
    Redirect,
    #[error("port 0 is not allowed")]
    Port,
    /// The literal in the URL, or all current addresses of its name, are not allowed; or it has no address.
    #[error("{host} does not resolve to an allowed address")]
    Address { host: String },
}

/// Supplier of a URL, which determines the checks.
#[derive(Clone, Debug)]
pub(super) enum Named {
    ByOrg(Policy),
    ByOperator,
}

/// Parses a URL that an organization sent.
///
/// # Errors
/// `TooLong` and `Malformed`; [`super::Client::check`] checks its destination.
pub fn parse(text: &str) -> Result<Url, Refused> {
    if text.len() > NET_URL_BYTES_MAX {
        return Err(Refused::TooLong);
    }
    Ok(Url::parse(text)?)
}

/// Checks everything that needs no DNS.
pub(super) fn check(named: &Named, url: &Url) -> Result<(), Refused> {
    if url.as_str().len() > NET_URL_BYTES_MAX {
        return Err(Refused::TooLong);
    }
    let plain = is_plain(named, url)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Refused::Credentials);
    }
    if url.port() == Some(0) {
        return Err(Refused::Port);
    }
    match url.host() {
        Some(Host::Ipv4(ip)) => check_literal(named, plain, IpAddr::V4(ip)),
        Some(Host::Ipv6(ip)) => check_literal(named, plain, IpAddr::V6(ip)),
        Some(Host::Domain(name)) => check_name(named, name),
        None => Err(Refused::Address { host: String::new() }),
    }
}

/// Whether a connection to the address is allowed.
pub(super) fn allows(named: &Named, plain: bool, ip: IpAddr) -> bool {
    match named {
        Named::ByOperator => true,
        Named::ByOrg(policy) if policy.denied.is_denied(ip) => false,
        Named::ByOrg(policy) => match reach(ip) {
            Reach::Public => !plain && (policy.allow_private || !policy.denied.is_own(ip)),
            Reach::Private => policy.allow_private,
            Reach::Never => false,
        },
    }
}

/// Whether the URL requests a connection without TLS.
pub(super) fn is_plain(named: &Named, url: &Url) -> Result<bool, Refused> {
    match url.scheme() {
        "https" => Ok(false),
        "http" if allows_private(named) => Ok(true),
        _ => Err(Refused::NotHttps),
    }
}

fn allows_private(named: &Named) -> bool {
    match named {
        Named::ByOrg(policy) => policy.allow_private,
        Named::ByOperator => true,
    }
}

fn check_literal(named: &Named, plain: bool, ip: IpAddr) -> Result<(), Refused> {
    if allows(named, plain, ip) {
        Ok(())
    } else if plain && reach(ip) == Reach::Public {
        Err(Refused::PlainToPublic)
    } else {
        Err(Refused::Address { host: ip.to_string() })
    }
}

/// Checks a host name. Names are judged by their addresses later; only the names that are loopback by
/// definition (RFC 6761, section 6.3) can be refused without DNS.
pub(super) fn check_name(named: &Named, name: &str) -> Result<(), Refused> {
    let bare = name.strip_suffix('.').unwrap_or(name);
    let loopback = bare == "localhost" || bare.ends_with(".localhost");
    if bare.is_empty() || loopback && !allows_private(named) {
        return Err(Refused::Address { host: name.to_owned() });
    }
    Ok(())
}
