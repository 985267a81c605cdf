//! Header rules of the proxy: which headers are forwarded, and the check of the Host header.
//!
//! Called by `exchange`; pure. Hop-by-hop headers are removed (RFC 9110, section 7.6.1), and ambiguities that
//! two parsers of one message could resolve differently are refused.

use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, UPGRADE};

use super::decision::Reason;
use crate::domain::network::canonical;

/// Headers that apply to one connection only.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Removes hop-by-hop headers.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Refuses a missing, repeated or wrong Host header; it must match the connection.
pub(super) fn check(headers: &HeaderMap, host: &str, port: u16) -> Result<(), Reason> {
    if headers.contains_key(UPGRADE) {
        return Err(Reason::Upgrade);
    }
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(value), None) = (hosts.next(), hosts.next()) else { return Err(Reason::HostHeader) };
    let text = value.to_str().map_err(|_| Reason::HostHeader)?;
    let (name, own_port) = match text.rsplit_once(':') {
        Some((name, own_port)) => (name, own_port.parse::<u16>().map_err(|_| Reason::HostHeader)?),
        None => (text, port),
    };
    let is_same = canonical(name).is_ok_and(|name| name == host) && own_port == port;
    if is_same { Ok(()) } else { Err(Reason::HostHeader) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_connection_names_goes_with_it() {
        let mut all = headers(&[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic eDp5"),
            ("x-kept", "1"),
        ]);
        strip(&mut all);
        assert_eq!(all, headers(&[("x-kept", "1")]));
    }

    #[test]
    fn the_host_header_is_that_of_the_connection() {
        for good in ["a.example", "A.example", "a.example.", "a.example:443"] {
            assert_eq!(check(&headers(&[("host", good)]), "a.example", 443), Ok(()), "{good}");
        }
        for bad in ["b.example", "a.example:80", "a.example:x", "", "127.0.0.1", "a.example@b.example"] {
            assert_eq!(check(&headers(&[("host", bad)]), "a.example", 443), Err(Reason::HostHeader), "{bad}");
        }
        let two = headers(&[("host", "a.example"), ("host", "b.example")]);
        assert_eq!(check(&two, "a.example", 443), Err(Reason::HostHeader));
        assert_eq!(check(&headers(&[]), "a.example", 443), Err(Reason::HostHeader));
        let upgrade = headers(&[("host", "a.example"), ("upgrade", "websocket")]);
        assert_eq!(check(&upgrade, "a.example", 443), Err(Reason::Upgrade));
    }
}
