//! Why a server gave no answer, and whether a call may have run.

use std::{error::Error, time::Duration};

use rmcp::{
    ServiceError, service::ClientInitializeError, transport::streamable_http_client::StreamableHttpError,
};

use crate::{
    base::{limit::MODEL_REASON_BYTES_MAX, text},
    net,
};

/// Why there is no answer of a server. The texts are for the organization and for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The address is not allowed; nothing was sent.
    #[error("the address is not allowed: {0}")]
    Refused(String),
    /// The server wants another authorization; it did not process the request.
    #[error("the server did not accept the authorization: {0}")]
    Unauthorized(String),
    /// There is no token for the server; nothing was sent.
    #[error("there is no access token for the server: {0}")]
    NoAccess(String),
    /// No connection could be made; nothing was sent.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server failed too often lately; nothing was sent.
    #[error("the server failed too often lately and is tried again in {} s", .0.as_secs().max(1))]
    Suspended(Duration),
    /// The server did not process the request, and says why.
    #[error("the server refused the request: {0}")]
    Rejected(String),
    /// There was no answer in time.
    #[error("the server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection broke before the answer.
    #[error("the connection to the server broke: {0}")]
    Lost(String),
    /// The answer is not one of the protocol, or too large.
    #[error("the server does not follow the protocol: {0}")]
    Protocol(String),
}

/// Why there is no access for a request, as an error that passes through the library.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAccess(pub String);

impl Failure {
    /// Returns its code in events.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unauthorized(_) | Self::NoAccess(_) => "unauthorized",
            Self::Unreachable(_) | Self::Lost(_) => "unreachable",
            Self::Suspended(_) => "suspended",
            Self::Timeout(_) => "timeout",
            Self::Rejected(_) | Self::Protocol(_) => "protocol",
        }
    }

    /// Returns the time for which the server is still suspended.
    pub fn suspended_for(&self) -> Option<Duration> {
        if let Self::Suspended(left) = self { Some(*left) } else { None }
    }

    /// Returns whether the server may have processed the request.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Refused(_)
            | Self::Unauthorized(_)
            | Self::NoAccess(_)
            | Self::Unreachable(_)
            | Self::Suspended(_)
            | Self::Rejected(_) => false,
            Self::Timeout(_) | Self::Lost(_) | Self::Protocol(_) => true,
        }
    }

    /// Returns whether another attempt may get an answer.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Timeout(_) | Self::Lost(_) | Self::Protocol(_))
    }

    /// Returns whether it is an answer of the server: it is not away.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Unauthorized(_) | Self::Rejected(_) | Self::Protocol(_))
    }

    /// Returns whether it counts for the breaker: the server is away, not merely unwilling.
    pub(super) fn is_of_transport(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Timeout(_) | Self::Lost(_))
    }

    /// Returns why no connection to a server was made.
    pub(super) fn of_connect(error: &ClientInitializeError) -> Self {
        match error {
            ClientInitializeError::TransportError { error, .. } => Self::of_transport(error.error.as_ref()),
            ClientInitializeError::LegacyFallbackFailed { fallback, .. } => Self::of_connect(fallback),
            ClientInitializeError::ConnectionClosed(_) => Self::Lost("it was closed".to_owned()),
            ClientInitializeError::JsonRpcError(error) => Self::Rejected(short(&error.message)),
            error => Self::Protocol(short(&error.to_string())),
        }
    }

    /// Returns why a request on a connection has no answer.
    pub(super) fn of_request(error: &ServiceError) -> Self {
        match error {
            ServiceError::TransportSend(error) => Self::of_transport(error.error.as_ref()),
            ServiceError::TransportClosed => Self::Lost("it was closed".to_owned()),
            ServiceError::McpError(error) => Self::Rejected(short(&error.message)),
            error => Self::Protocol(short(&error.to_string())),
        }
    }

    fn of_transport(error: &(dyn Error + Send + Sync + 'static)) -> Self {
        let mut cause: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(refused) = error.downcast_ref::<net::Refused>() {
                return Self::Refused(refused.to_string());
            }
            if let Some(error) = error.downcast_ref::<StreamableHttpError<reqwest::Error>>()
                && let Some(failure) = Self::of_http(error)
            {
                return failure;
            }
            if let Some(error) = error.downcast_ref::<reqwest::Error>() {
                return Self::of_reqwest(error);
            }
            cause = error.source();
        }
        Self::Lost(short(&error.to_string()))
    }

    fn of_http(error: &StreamableHttpError<reqwest::Error>) -> Option<Self> {
        Some(match error {
            StreamableHttpError::Client(error) => Self::of_reqwest(error),
            StreamableHttpError::Io(error) => {
                let reason = error.get_ref().and_then(|error| error.downcast_ref::<NoAccess>());
                Self::NoAccess(reason?.0.clone())
            }
            StreamableHttpError::AuthRequired(error) => {
                Self::Unauthorized(short(&error.www_authenticate_header))
            }
            StreamableHttpError::InsufficientScope(error) => {
                Self::Unauthorized(short(&error.www_authenticate_header))
            }
            // A server that is overloaded has not begun; another failure of it may come at any time.
            StreamableHttpError::HttpStatus(error) if error.status == 429 => {
                Self::Rejected(error.to_string())
            }
            StreamableHttpError::HttpStatus(error) => Self::Lost(error.to_string()),
            // The texts begin with the status. No such answer is one to a request that was processed.
            StreamableHttpError::UnexpectedServerResponse(words)
                if words.starts_with("HTTP 401") || words.starts_with("HTTP 403") =>
            {
                Self::Unauthorized(short(words))
            }
            // A gateway gave up waiting, or the request was answered by another address.
            StreamableHttpError::UnexpectedServerResponse(words) if words.starts_with("HTTP 408") => {
                Self::Lost(short(words))
            }
            StreamableHttpError::UnexpectedServerResponse(words)
                if ["HTTP 4", "HTTP 307", "HTTP 308"].iter().any(|begin| words.starts_with(begin)) =>
            {
                Self::Rejected(short(words))
            }
            StreamableHttpError::SessionExpired => Self::Rejected("its session has ended".to_owned()),
            error @ (StreamableHttpError::UnexpectedServerResponse(_)
            | StreamableHttpError::UnexpectedContentType(_)
            | StreamableHttpError::ResponseBodyTooLarge { .. }
            | StreamableHttpError::Deserialize(_)
            | StreamableHttpError::Sse(_)) => Self::Protocol(short(&error.to_string())),
            _ => return None,
        })
    }

    fn of_reqwest(error: &reqwest::Error) -> Self {
        if let Some(refused) = net::refusal(error) {
            return Self::Refused(refused.to_string());
        }
        // The innermost cause says what happened; the others repeat the address.
        let mut cause: &dyn Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let words = short(&cause.to_string());
        if error.is_connect() { Self::Unreachable(words) } else { Self::Lost(words) }
    }
}

fn short(words: &str) -> String {
    text::truncate(words, MODEL_REASON_BYTES_MAX).to_owned()
}
