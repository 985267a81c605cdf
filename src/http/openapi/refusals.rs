//! Which errors an operation may answer, by what it takes: its key, its ids, its body.
//!
//! Called by the description. Every test holds the answers that it gets to this.

use utoipa::openapi::{
    RefOr,
    path::{Operation, ParameterIn},
    response::{Response, ResponseBuilder},
};

use super::Method;

/// Status, name among the components, and meaning.
type Refusal = (&'static str, &'static str, &'static str);

const INVALID: Refusal =
    ("400", "Invalid", "The request is not as it must be; `error.param` names the fault.");
const UNAUTHORIZED: Refusal = ("401", "Unauthorized", "No key, or one that opens nothing.");
const PAYMENT_REQUIRED: Refusal = ("402", "PaymentRequired", "A budget is used up; `error.code` says which.");
const FORBIDDEN: Refusal = ("403", "Forbidden", "The key lacks the scope, or its organization is suspended.");
const NOT_FOUND: Refusal = ("404", "NotFound", "There is no such thing for this caller.");
const CONFLICT: Refusal = ("409", "Conflict", "The state of the thing forbids it; `error.code` says how.");
const TOO_LARGE: Refusal = ("413", "TooLarge", "More bytes than are taken or given at once.");
const UNSUPPORTED: Refusal =
    ("415", "UnsupportedMediaType", "The body is of another kind than is read here.");
const UNPROCESSABLE: Refusal =
    ("422", "Unprocessable", "Well formed, but it cannot be done; `error.code` says why.");
const RATE_LIMITED: Refusal =
    ("429", "RateLimited", "Too many requests; `Retry-After` says how long to wait.");
const INTERNAL: Refusal = ("500", "Internal", "The service failed.");
const UNAVAILABLE: Refusal = ("503", "Unavailable", "Not now; `Retry-After` says when to try again.");

/// Operations that look for what their body or their query names.
const NAMING: [&str; 6] =
    ["createAgent", "createSession", "importSession", "setDefaultCredential", "listSessions", "getUsage"];
/// What begins something in a sandbox, which may cost more than may be spent.
const SPENDING: [&str; 3] = ["execInSession", "startSession", "restoreSession"];
/// What is asked of a sandbox, by a request that changes nothing in the log.
const FILES: [&str; 3] = ["readFile", "readArchive", "listFiles"];

/// The errors of an operation, by status.
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
        // A WebSocket is asked for by headers that are not described.
        (INVALID, has_body || reads_query || writes || id == "connectEvents"),
        (UNAUTHORIZED, is_keyed),
        (PAYMENT_REQUIRED, SPENDING.contains(&id)),
        (FORBIDDEN, is_keyed && !is_admin),
        (NOT_FOUND, path.contains('{') || NAMING.contains(&id)),
        (CONFLICT, writes || FILES.contains(&id)),
        (TOO_LARGE, writes || ["readFile", "readArchive"].contains(&id)),
        (UNSUPPORTED, has_body),
        (UNPROCESSABLE, method == Method::Post),
        (RATE_LIMITED, is_keyed && !is_admin || is_trigger),
        (INTERNAL, true),
        (UNAVAILABLE, true),
    ];
    may.into_iter().filter_map(|(refusal, may)| may.then_some(refusal)).collect()
}

/// The error's response with that meaning.
pub(super) fn response(error: &Response, description: &str) -> Response {
    ResponseBuilder::from(error.clone()).description(description).build()
}
