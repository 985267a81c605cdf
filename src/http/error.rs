//! Errors of handlers and their conversion to the API's error format.

use std::{any::Any, borrow::Cow, time::Duration};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::{
    blob, domain::decide::Rejection, file, journal, net, skill, store, trigger::Refused, wire::ErrorType,
};

/// Result of a handler.
pub(super) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Error response of a handler.
#[derive(Debug, Clone)]
pub(super) struct ApiError {
    pub kind: ErrorType,
    pub message: Cow<'static, str>,
    pub code: Option<Cow<'static, str>>,
    pub param: Option<String>,
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// Creates an error with a message that tells the caller what to do.
    pub(super) fn new(kind: ErrorType, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), code: None, param: None, retry_after: None }
    }

    /// 400: the value of the field `param` is invalid.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<Cow<'static, str>>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorType::Invalid, message) }
    }

    /// 400: serde did not accept the value at `path`.
    pub(super) fn undeserializable(path: &serde_path_to_error::Path, error: &impl std::fmt::Display) -> Self {
        let (message, path) = (error.to_string(), path.to_string());
        let path = (path != ".").then_some(path);
        // The path of an unknown field contains the field, unless an inner deserializer lost it. The path of an
        // absent or repeated one is that of its object. Only serde's own messages begin with these words.
        let field = |prefix: &str| message.strip_prefix(prefix)?.split_once('`').map(|(field, _)| field);
        let param = match (path, field("unknown field `")) {
            (Some(path), Some(field)) if path.rsplit('.').next() == Some(field) => Some(path),
            (path, unknown) => {
                let own = unknown.or_else(|| field("missing field `")).or_else(|| field("duplicate field `"));
                let names: Vec<_> = path.as_deref().into_iter().chain(own).collect();
                (!names.is_empty()).then(|| names.join("."))
            }
        };
        Self { param, ..Self::new(ErrorType::Invalid, message) }
    }

    /// 404: the same message for an unknown id and for a resource of another organization.
    pub(super) fn not_found() -> Self {
        Self::new(ErrorType::NotFound, "there is no such resource")
    }

    /// 404 for the complete body of an event that is lost.
    pub(super) fn content_missing() -> Self {
        Self::new(
            ErrorType::NotFound,
            "the complete body is missing from the blob store; the event has its beginning",
        )
    }

    /// 409 with a machine-readable reason.
    pub(super) fn conflict(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code.into()), ..Self::new(ErrorType::Conflict, message) }
    }

    /// 402: a budget is exhausted; `code` says which. Not retryable without raising the budget.
    pub(super) fn payment_required(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code.into()), ..Self::new(ErrorType::PaymentRequired, message) }
    }

    /// 422 with a machine-readable reason.
    pub(super) fn unprocessable(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code.into()), ..Self::new(ErrorType::Unprocessable, message) }
    }

    /// 503: temporarily unavailable; retry after the given time.
    pub(super) fn unavailable(retry_after: Duration) -> Self {
        // A commit whose response was lost may have taken effect.
        let message = "temporarily unavailable; retry, with the same Idempotency-Key if you sent one";
        Self { retry_after: Some(retry_after), ..Self::new(ErrorType::Unavailable, message) }
    }

    /// Returns the status code of this error.
    pub(super) fn status(&self) -> StatusCode {
        status(self.kind)
    }
}

/// Returns the status code of an error type.
pub fn status(kind: ErrorType) -> StatusCode {
    match kind {
        ErrorType::Invalid => StatusCode::BAD_REQUEST,
        ErrorType::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorType::PaymentRequired => StatusCode::PAYMENT_REQUIRED,
        ErrorType::Forbidden => StatusCode::FORBIDDEN,
        ErrorType::NotFound => StatusCode::NOT_FOUND,
        ErrorType::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorType::Conflict => StatusCode::CONFLICT,
        ErrorType::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorType::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorType::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorType::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorType::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorType::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl IntoResponse for ApiError {
    /// Attaches the error to the response. The request middleware knows the request id and writes the
    /// body.
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ErrorType::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<store::Error> for ApiError {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::NotFound => Self::not_found(),
            store::Error::Busy => Self {
                retry_after: Some(Duration::from_secs(1)),
                ..Self::conflict("in_flight", "an identical request is still in progress; retry in a moment")
            },
            store::Error::Unavailable { retry_after, source } => {
                tracing::warn!(error = %source, "database unavailable");
                Self::unavailable(retry_after)
            }
            store::Error::BlobStore { retry_after, reason } => {
                tracing::warn!(reason, "blob store unavailable");
                Self::unavailable(retry_after)
            }
            // The reader has logged and counted it.
            error @ store::Error::SegmentLost { .. } => Self::new(
                ErrorType::Internal,
                format!("{error}; a retry does not help, report it to the operator"),
            ),
            error @ store::Error::Unstorable => Self::new(ErrorType::Invalid, error.to_string()),
            store::Error::Conflict(constraint) if constraint == "session_slug" => Self {
                param: Some("slug".to_owned()),
                ..Self::conflict("slug_taken", "another open session has this slug; use another one")
            },
            store::Error::Conflict(constraint) => {
                tracing::debug!(constraint, "a constraint rejected a row");
                Self::conflict(
                    "conflict",
                    "this conflicts with another request; read the resource again and retry",
                )
            }
            error @ (store::Error::Corrupt(_) | store::Error::Database(_)) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, source, "request failed");
                Self::new(ErrorType::Internal, "internal error; the request was not executed")
            }
        }
    }
}

impl From<journal::Error> for ApiError {
    fn from(error: journal::Error) -> Self {
        match error {
            journal::Error::Rejected(rejection) => rejection.into(),
            journal::Error::Store(error) => error.into(),
            journal::Error::Blob(error) => error.into(),
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let unknown = |param: &str| Self { param: Some(param.to_owned()), ..Self::not_found() };
        match refused {
            Refused::UnknownAgent => unknown("agent"),
            Refused::UnknownEnvironment => unknown("environment"),
            Refused::UnknownSession => unknown("session_id"),
            Refused::UnknownParent => unknown("parent_session_id"),
            Refused::Model(reason) => Self::invalid("model", reason),
            Refused::Source(reason) => Self::invalid("sources", reason),
            error @ Refused::UnknownSkill(index) => {
                Self::invalid(format!("skills[{index}]"), error.to_string())
            }
            error @ Refused::UnreadableSkills => Self::invalid("skills", error.to_string()),
            error @ Refused::NoCredential(_) => Self::unprocessable("no_credential", error.to_string()),
            Refused::Journal(error) => error.into(),
        }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let message = rejection.to_string();
        match rejection {
            Rejection::Archived => Self::conflict("archived", message),
            Rejection::NoAgent => Self::conflict("no_agent", message),
            Rejection::NothingToCompact => Self::conflict("nothing_to_compact", message),
            Rejection::BudgetExceeded(_)
            | Rejection::AncestorLimitExceeded(..)
            | Rejection::CapExceeded(_) => Self::payment_required("budget_exceeded", message),
            Rejection::BalanceExhausted => Self::payment_required("payment_required", message),
            Rejection::Paused => Self::conflict("paused", message),
            Rejection::Stopped => Self::conflict("stopped", message),
            Rejection::Failed => Self::conflict("failed", message),
            Rejection::ParentArchived => Self::conflict("parent_archived", message),
            Rejection::TooDeep => Self::conflict("too_deep", message),
            Rejection::TooManyDescendants => Self::conflict("too_many_sessions_below", message),
            Rejection::OpenDescendants => Self::conflict("open_sessions_below", message),
            Rejection::ActionResolved(..) => Self::conflict("action_resolved", message),
            Rejection::ActionExpired => Self::conflict("action_expired", message),
            Rejection::ActionClaimed => Self::conflict("action_claimed", message),
            Rejection::AnswerKind(_) => Self::new(ErrorType::Invalid, message),
            Rejection::TurnRunning => Self::conflict("turn_running", message),
            Rejection::TurnNotFailed => Self::conflict("turn_not_failed", message),
            Rejection::NotLastTurn(_) => Self::conflict("not_last_turn", message),
        }
    }
}

impl From<blob::Error> for ApiError {
    fn from(error: blob::Error) -> Self {
        match error {
            blob::Error::NotFound => Self::not_found(),
            error @ (blob::Error::Timeout | blob::Error::Unavailable(_)) => {
                tracing::warn!(%error, "blob store unavailable");
                Self::unavailable(Duration::from_secs(5))
            }
        }
    }
}

impl From<file::Error> for ApiError {
    fn from(error: file::Error) -> Self {
        match error {
            file::Error::Refused(reason) => Self::new(ErrorType::Invalid, reason),
            file::Error::Full => Self::conflict("file_storage_full", error.to_string()),
            file::Error::Store(error) => error.into(),
            file::Error::Blob(error) => error.into(),
        }
    }
}

impl From<skill::Error> for ApiError {
    fn from(error: skill::Error) -> Self {
        match error {
            skill::Error::Refused(reason) => Self::new(ErrorType::Invalid, reason),
            skill::Error::Full => Self::conflict("skill_storage_full", error.to_string()),
            skill::Error::Store(error) => error.into(),
            skill::Error::Blob(error) => error.into(),
        }
    }
}

impl From<net::Refused> for ApiError {
    fn from(refused: net::Refused) -> Self {
        Self::invalid("url", refused.to_string())
    }
}

/// Handler of paths that match no route.
pub(super) async fn unknown_route() -> ApiError {
    ApiError::new(ErrorType::NotFound, "unknown route; openapi.yaml lists the routes")
}

/// Handler of known paths with an unsupported method.
pub(super) async fn wrong_method() -> ApiError {
    ApiError::new(ErrorType::MethodNotAllowed, "this path does not support this method")
}

/// Response of a handler that panicked. The panic hook has already logged the panic.
pub(super) fn panicked(_panic: Box<dyn Any + Send>) -> Response {
    ApiError::new(ErrorType::Internal, "internal error; the request may or may not have been executed")
        .into_response()
}
