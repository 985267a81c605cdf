//! Errors of handlers, and their one form on the wire.

use std::{any::Any, borrow::Cow, time::Duration};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::{blob, domain::decide::Rejection, journal, net, store, trigger::Refused, wire::ErrorType};

/// Why a request was not done.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub kind: ErrorType,
    pub message: Cow<'static, str>,
    pub code: Option<Cow<'static, str>>,
    pub param: Option<String>,
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// An error of a type, with a message that says what to do.
    pub fn new(kind: ErrorType, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), code: None, param: None, retry_after: None }
    }

    /// 400: the field `param` is not as it must be.
    pub fn invalid(param: impl Into<String>, message: impl Into<Cow<'static, str>>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorType::Invalid, message) }
    }

    /// 404: the same words for what never existed and for what is another's.
    pub fn not_found() -> Self {
        Self::new(ErrorType::NotFound, "there is no such resource")
    }

    /// 409, with the exact reason.
    pub fn conflict(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code.into()), ..Self::new(ErrorType::Conflict, message) }
    }

    /// 402: a budget is used up; `code` says which kind. Never an answer that is tried again.
    pub fn payment_required(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code.into()), ..Self::new(ErrorType::PaymentRequired, message) }
    }

    /// 422, with the exact reason.
    pub fn unprocessable(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code.into()), ..Self::new(ErrorType::Unprocessable, message) }
    }

    /// 503: try again after a while.
    pub fn unavailable(retry_after: Duration) -> Self {
        // A commit whose answer was lost may have been done.
        let message =
            "the service cannot do this right now; try again, with the same Idempotency-Key if you sent one";
        Self { retry_after: Some(retry_after), ..Self::new(ErrorType::Unavailable, message) }
    }

    /// The status code of this error.
    pub fn status(&self) -> StatusCode {
        status(self.kind)
    }
}

/// The status code of a type of error.
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
    /// Carries itself to `finish`, which knows the request's id and writes the body.
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
                ..Self::conflict(
                    "in_flight",
                    "an equal request is still being worked on; ask again in a moment",
                )
            },
            store::Error::Unavailable { retry_after, source } => {
                tracing::warn!(error = %source, "the database is not available");
                Self::unavailable(retry_after)
            }
            error @ store::Error::Unstorable => Self::new(ErrorType::Invalid, error.to_string()),
            store::Error::Conflict(constraint) if constraint == "session_slug" => Self {
                param: Some("slug".to_owned()),
                ..Self::conflict("slug_taken", "another open session has this slug; use another one")
            },
            store::Error::Conflict(constraint) => {
                tracing::debug!(constraint, "a row was refused");
                Self::conflict(
                    "conflict",
                    "this conflicts with what another request did; read again and retry",
                )
            }
            error @ (store::Error::Corrupt(_) | store::Error::Database(_)) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, source, "a request failed");
                Self::new(ErrorType::Internal, "the service failed; the request was not done")
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
            Rejection::BudgetExceeded(_) | Rejection::AboveExceeded(..) | Rejection::CapSpent(_) => {
                Self::payment_required("budget_exceeded", message)
            }
            Rejection::Unpaid => Self::payment_required("payment_required", message),
            Rejection::Paused => Self::conflict("paused", message),
            Rejection::Stopped => Self::conflict("stopped", message),
            Rejection::ParentArchived => Self::conflict("parent_archived", message),
            Rejection::TooDeep => Self::conflict("too_deep", message),
            Rejection::TooManyBelow => Self::conflict("too_many_sessions_below", message),
            Rejection::OpenBelow => Self::conflict("open_sessions_below", message),
            Rejection::TurnRunning => Self::conflict("turn_running", message),
        }
    }
}

impl From<blob::Error> for ApiError {
    fn from(error: blob::Error) -> Self {
        match error {
            blob::Error::NotFound => Self::not_found(),
            blob::Error::Unavailable(reason) => {
                tracing::warn!(reason, "the blob store is not available");
                Self::unavailable(Duration::from_secs(5))
            }
        }
    }
}

impl From<net::Refused> for ApiError {
    fn from(refused: net::Refused) -> Self {
        Self::invalid("url", refused.to_string())
    }
}

/// For a path that no route has.
pub async fn unknown_route() -> ApiError {
    ApiError::new(ErrorType::NotFound, "there is no such route; see openapi.yaml for those that exist")
}

/// For a path that has other methods.
pub async fn wrong_method() -> ApiError {
    ApiError::new(ErrorType::MethodNotAllowed, "this path does not take that method")
}

/// For a handler that panicked. The panic itself was logged by the trigger.
pub fn panicked(_panic: Box<dyn Any + Send>) -> Response {
    ApiError::new(ErrorType::Internal, "the service failed; whether the request was done is not known")
        .into_response()
}
