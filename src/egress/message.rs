//! Requests and responses that pass the proxy: their destination, their body, and why there is none.

use bytes::Bytes;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use super::{
    decision::{Manner, Reason},
    ledger::Lost,
};

/// Body of a forwarded request or response.
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Canonical host name.
    pub host: String,
    pub port: u16,
    pub tls: bool,
}

/// Reason why there is no response from the host.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Denied(Reason),
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("the host could not be reached: {0}")]
    Failed(String),
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Denied(reason)
    }
}

impl Target {
    pub(super) fn manner(&self) -> Manner {
        if self.tls { Manner::Inspected } else { Manner::Plain }
    }

    /// Value of the Host header; includes the port unless it is the scheme's default.
    pub(super) fn authority(&self) -> String {
        let Self { host, port, tls } = self;
        if *port == if *tls { 443 } else { 80 } { host.clone() } else { format!("{host}:{port}") }
    }
}

/// A body with this text.
pub(super) fn whole(text: String) -> Body {
    http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}
