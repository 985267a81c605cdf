//! The body of every answer that is not a success.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What kind of error it is. Stable: programs decide on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// 400: the request is not well formed; `param` names the field.
    Invalid,
    /// 401: no key, or one that is unknown, expired or revoked.
    Unauthorized,
    /// 402: the organization has no credit left.
    PaymentRequired,
    /// 403: the key lacks the scope.
    Forbidden,
    /// 404: no such thing for this caller.
    NotFound,
    /// 405: the path exists, the method does not.
    MethodNotAllowed,
    /// 409: the state of the thing forbids it; `code` says how.
    Conflict,
    /// 413: the body is larger than the route takes.
    TooLarge,
    /// 415: the body is not `application/json`.
    UnsupportedMediaType,
    /// 422: well formed, but it cannot be done; `code` says why.
    Unprocessable,
    /// 429: too many requests; see Retry-After.
    RateLimited,
    /// 500: a fault of the service.
    Internal,
    /// 503: try again; see Retry-After.
    Unavailable,
}

/// An error, as every route answers it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// What went wrong and what to do about it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// For people: what was wrong, what is allowed.
    pub message: String,
    /// For programs: the exact reason within the type, as in `archived`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The field, header or query parameter at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// Names this request in the service's logs.
    pub request_id: String,
}
