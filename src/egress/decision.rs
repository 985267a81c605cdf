//! Decisions of the egress proxy, as they appear in the log.

use std::fmt;

/// A decision. Equal decisions become one event with a count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// Canonical host name; if it is not a valid host, the text that the sandbox sent, truncated.
    pub host: String,
    pub port: u16,
    /// HTTP method of the request; `CONNECT` for a tunnel.
    pub method: String,
    pub verdict: Verdict,
}

/// Outcome of a decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Allowed {
        manner: Manner,
        /// Names of the injected secrets.
        secrets: Vec<String>,
    },
    Denied(Reason),
}

/// Handling of an allowed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manner {
    /// TLS between the sandbox and the host, not decrypted.
    Tunnel,
    /// TLS terminated at the proxy and opened again to the host, because a rule or a secret requires it.
    Inspected,
    /// Plain HTTP.
    Plain,
}

/// Reason of a denial.
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
    SecretPlacement,
    EncryptedHello,
    EncodedAnswer,
}

impl Manner {
    /// Name in the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Inspected => "inspected",
            Self::Plain => "plain",
        }
    }
}

impl Reason {
    /// Name in the log.
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
            Self::SecretPlacement => "secret_placement",
            Self::EncryptedHello => "encrypted_client_hello",
            Self::EncodedAnswer => "encoded_answer",
        }
    }
}

/// Error text for the program in the sandbox: the denial, and what is allowed instead.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadHost => "not a valid host name",
            Self::AddressLiteral => "IP addresses are not allowed, only names that the environment allows",
            Self::Host => "the environment of this session does not allow this host",
            Self::Port => "the environment of this session does not allow this port of the host",
            Self::Method => "the environment of this session does not allow this method for the host",
            Self::Path => "the environment of this session does not allow this path of the host",
            Self::Address => "the host does not resolve to an allowed address",
            Self::NotTls => "a tunnel must carry TLS",
            Self::Sni => "the server name of the TLS handshake differs from the host of the tunnel",
            Self::HostHeader => "the Host header differs from the host of the connection",
            Self::Upgrade => "connections to this host cannot be upgraded",
            Self::ForeignCredential => {
                "the environment provides the credential for this host; send its placeholder, not another key"
            }
            Self::SecretPlacement => {
                "the placeholder of a secret is not where the environment allows it: its `headers` and \
                `query_parameters` say where, by default in Authorization"
            }
            Self::EncryptedHello => {
                "the TLS handshake has an encrypted ClientHello (ECH), which hides the server name: turn it off"
            }
            Self::EncodedAnswer => "the host compressed its response, which the request did not allow",
        })
    }
}
