//! What the proxy decided, in the words of the log.

use std::fmt;

/// One decision. Equal ones are one event with a count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// The host's canonical name; what the sandbox sent where that is none, cut short.
    pub host: String,
    pub port: u16,
    /// The request's method; `CONNECT` for a tunnel.
    pub method: String,
    pub verdict: Verdict,
}

/// Whether it was let through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Allowed {
        manner: Manner,
        /// Names of the secrets that were put in.
        secrets: Vec<String>,
    },
    Denied(Reason),
}

/// How a connection is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manner {
    /// TLS between the sandbox and the host, unread.
    Tunnel,
    /// TLS that ends at the proxy and begins again: a rule or a secret needs it.
    Inspected,
    /// Plain HTTP.
    Plain,
}

/// Why nothing was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    BadHost,
    AddressLiteral,
    Host,
    Port,
    Method,
    Path,
    Address,
    NotTls,
    Sni,
    HostHeader,
    Upgrade,
    ForeignCredential,
    EncodedAnswer,
}

impl Manner {
    /// The word of the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Inspected => "inspected",
            Self::Plain => "plain",
        }
    }
}

impl Reason {
    /// The word of the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::BadHost => "bad_host",
            Self::AddressLiteral => "address_literal",
            Self::Host => "host_not_allowed",
            Self::Port => "port_not_allowed",
            Self::Method => "method_not_allowed",
            Self::Path => "path_not_allowed",
            Self::Address => "address_not_public",
            Self::NotTls => "not_tls",
            Self::Sni => "sni_mismatch",
            Self::HostHeader => "host_mismatch",
            Self::Upgrade => "upgrade",
            Self::ForeignCredential => "foreign_credential",
            Self::EncodedAnswer => "encoded_answer",
        }
    }
}

/// For whoever reads the refusal inside the sandbox: what is allowed instead.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadHost => "that is not the name of a host",
            Self::AddressLiteral => "addresses cannot be called, only names that the environment allows",
            Self::Host => "the environment of this session does not allow this host",
            Self::Port => "the environment of this session does not allow this port of the host",
            Self::Method => "the environment of this session does not allow this method there",
            Self::Path => "the environment of this session does not allow this path there",
            Self::Address => "the host has no address that may be called",
            Self::NotTls => "a tunnel carries TLS only",
            Self::Sni => "the server name of the TLS handshake is another than the host of the tunnel",
            Self::HostHeader => "the Host header is another than the host of the connection",
            Self::Upgrade => "connections to this host cannot be upgraded",
            Self::ForeignCredential => {
                "this host takes its credential from the environment; send the placeholder, not another key"
            }
            Self::EncodedAnswer => "the host compressed its answer although it was asked not to",
        })
    }
}
