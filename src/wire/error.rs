//! Body of every error response.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error class. Stable; programs can branch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// 400: the request is malformed; `param` names the field.
    Invalid,
    /// 401: no key was sent, or the key is unknown, expired or revoked.
    Unauthorized,
    /// 402: the organization has no credit left.
    PaymentRequired,
    /// 403: the key lacks the required scope.
    Forbidden,
    /// 404: the resource does not exist or belongs to another organization.
    NotFound,
    /// 405: the path exists, but does not support the method.
    MethodNotAllowed,
    /// 409: the resource's state does not allow the request; `code` gives the reason.
    Conflict,
    /// 413: the body exceeds the limit of the route.
    TooLarge,
    /// 415: the body is not `application/json`.
    UnsupportedMediaType,
    /// 422: the request is well formed but cannot be processed; `code` gives the reason.
    Unprocessable,
    /// 429: too many requests; retry after the time in `Retry-After`.
    RateLimited,
    /// 500: internal error of the service.
    Internal,
    /// 503: temporarily unavailable; retry after the time in `Retry-After`.
    Unavailable,
}

/// Error response of every route.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// The error and how to handle it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// Human-readable: what was wrong and what is allowed.
    pub message: String,
    /// Machine-readable reason within the type, for example `archived`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Field, header or query parameter that caused the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// Id of this request in the service's logs.
    pub request_id: String,
}
