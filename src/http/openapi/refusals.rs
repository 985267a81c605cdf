//! Error responses of an operation, derived from its key, ids and body.
//!
//! Called by the document. Tests check that actual responses conform to this list.

use utoipa::openapi::{
    RefOr,
    path::{Operation, ParameterIn},
    response::{Response, ResponseBuilder},
};

/// Kind of an operation, as far as its responses and scopes depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Read,
    Post,
    Write,
}

/// Status, component name, and description.
type Refusal = (&'static str, &'static str, &'static str);

const INVALID: Refusal =
    ("400", "Invalid", "The request is malformed or invalid; `error.param` names the field.");
const UNAUTHORIZED: Refusal = ("401", "Unauthorized", "No key was sent, or the key is invalid.");
const PAYMENT_REQUIRED: Refusal =
    ("402", "PaymentRequired", "A budget is exhausted; `error.code` says which.");
const FORBIDDEN: Refusal = ("403", "Forbidden", "The key lacks the scope, or its organization is suspended.");
const NOT_FOUND: Refusal = ("404", "NotFound", "The resource does not exist in the caller's organization.");
const CONFLICT: Refusal =
    ("409", "Conflict", "The resource's state does not allow the request; see `error.code`.");
const TOO_LARGE: Refusal = ("413", "TooLarge", "The body or the requested content exceeds the size limit.");
const UNSUPPORTED: Refusal = ("415", "UnsupportedMediaType", "The media type of the body is not supported.");
const UNPROCESSABLE: Refusal =
    ("422", "Unprocessable", "Well formed, but it cannot be processed; `error.code` gives the reason.");
const RATE_LIMITED: Refusal =
    ("429", "RateLimited", "Too many requests; retry after the time in `Retry-After`.");
const INTERNAL: Refusal = ("500", "Internal", "Internal error of the service.");
const UNAVAILABLE: Refusal =
    ("503", "Unavailable", "Temporarily unavailable; retry after the time in `Retry-After`.");

/// Operations that look up resources named in their body or query.
const NAMING: [&str; 6] =
    ["createAgent", "createSession", "importSession", "setDefaultCredential", "listSessions", "getUsage"];
/// Operations that start work in a sandbox, which may exceed a budget.
const SPENDING: [&str; 3] = ["execInSession", "startSession", "restoreSession"];
/// Reads of a sandbox that append nothing to the log.
const FILES: [&str; 3] = ["readFile", "readArchive", "listFiles"];
/// Streams of a log, which do not begin after its end.
const FOLLOWING: [&str; 3] = ["listEvents", "streamEvents", "connectEvents"];

/// Returns the error responses of an operation, by status.
pub(super) fn of(operation: &Operation, path: &str, method: Method) -> Vec<Refusal> {
    let id = operation.operation_id.as_deref().unwrap_or_default();
    let (is_admin, is_trigger) = (path.starts_with("/v3/admin/"), id == "receiveTrigger");
    let has_body = operation.request_body.is_some();
    let writes = method != Method::Read;
    let is_keyed = path.starts_with("/v3/") && !is_trigger;
    let reads_query = operation.parameters.iter().flatten().any(|parameter| match parameter {
        RefOr::T(parameter) => matches!(parameter.parameter_in, ParameterIn::Query | ParameterIn::Header),
        RefOr::Ref(_) => true,
    });
    let may = [
        // A WebSocket upgrade depends on headers that are not part of the document.
        (INVALID, has_body || reads_query || writes || id == "connectEvents"),
        (UNAUTHORIZED, is_keyed),
        (PAYMENT_REQUIRED, SPENDING.contains(&id)),
        (FORBIDDEN, is_keyed && !is_admin),
        (NOT_FOUND, path.contains('{') || NAMING.contains(&id)),
        (CONFLICT, writes || FILES.contains(&id) || FOLLOWING.contains(&id)),
        (TOO_LARGE, writes || ["readFile", "readArchive"].contains(&id)),
        (UNSUPPORTED, has_body),
        (UNPROCESSABLE, method == Method::Post || id == "updateSession"),
        (RATE_LIMITED, is_keyed && !is_admin || is_trigger),
        (INTERNAL, true),
        (UNAVAILABLE, true),
    ];
    may.into_iter().filter_map(|(refusal, may)| may.then_some(refusal)).collect()
}

/// Returns the error response with this description.
pub(super) fn response(error: &Response, description: &str) -> Response {
    ResponseBuilder::from(error.clone()).description(description).build()
}
