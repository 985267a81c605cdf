//! Operations of callers on a session's sandbox: submit one and wait for its result.
//!
//! The holder of the session's lease executes them.

use std::time::Duration;

use axum::{extract::FromRequestParts, http::request::Parts};
use serde_json::json;

use crate::{
    base::limit::{OPERATION_WAIT, OPERATIONS_OPEN_MAX},
    domain::{
        OperationId, SessionId,
        decide::Stamp,
        operation::{Answer as Outcome, Failure, Request},
    },
    http::{
        prelude::*,
        scope::{Scope, WriteSessions},
    },
    journal::operation_blob,
    store::operation::OperationRecord,
    wire::ErrorType,
};

/// Time that a caller waits for the sandbox: `Prefer: wait=N` (RFC 7240), at most and by default 20
/// seconds.
#[derive(Clone, Copy)]
pub(super) struct MaxWait(Duration);

impl FromRequestParts<App> for MaxWait {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self> {
        let prefers = parts.headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
        let wait = prefers
            .flat_map(|value| value.split([',', ';']))
            .find_map(|preference| preference.trim().strip_prefix("wait="));
        // RFC 7240: preferences that cannot be honored are ignored.
        let seconds = wait.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        Ok(Self(seconds.map_or(OPERATION_WAIT, |seconds| seconds.min(OPERATION_WAIT))))
    }
}

/// Submits an operation in an idempotent request. The stored response contains its id.
pub(super) async fn operate(
    unit: &mut Unit,
    session: SessionId,
    request: &Request,
    stamp: &Stamp,
) -> Result<Answer> {
    let operation: OperationId = stamp.origin.id();
    submit(unit, session, operation, request, stamp).await?;
    Ok(Answer::new(StatusCode::OK, &json!({ "id": operation })))
}

/// Returns the operation that a request, or an identical earlier one, submitted.
pub(super) fn submitted_by(answer: &Answer) -> Option<OperationId> {
    answer.body["id"].as_str().and_then(|id| id.parse().ok())
}

/// Waits for the end of an operation, at most for the caller's wait time.
pub(super) async fn seen<S: Scope>(
    caller: &Caller<S>,
    session: SessionId,
    operation: OperationId,
    max_wait: MaxWait,
) -> Result<OperationRecord> {
    Ok(caller.app.0.journal.answered(caller.org, session, operation, max_wait.0).await?)
}

/// Waits for the outcome of a submitted operation. Returns `None` if it has not completed in time, or if
/// nothing was submitted.
pub(super) async fn outcome<S: Scope>(
    caller: &Caller<S>,
    session: SessionId,
    submitted: Option<OperationId>,
    max_wait: MaxWait,
) -> Result<Option<Outcome>> {
    let Some(operation) = submitted else { return Ok(None) };
    match seen(caller, session, operation, max_wait).await?.answer {
        Some(Outcome::Failed { code, message }) => Err(failed(code, message)),
        answer => Ok(answer),
    }
}

/// Runs an operation that reads from the sandbox.
pub(super) async fn read<S: Scope>(
    caller: &Caller<S>,
    session: SessionId,
    request: &Request,
    max_wait: MaxWait,
) -> Result<Outcome> {
    let operation: OperationId = caller.origin().id();
    submit_alone(caller, session, operation, request).await?;
    outcome(caller, session, Some(operation), max_wait).await?.ok_or_else(busy)
}

/// Runs an operation that writes a blob to the sandbox: `store` stores it, `request` names it. Returns the
/// number of bytes that were written.
///
/// A task of its own stores and submits it, so that no blob stays without an operation if the client leaves in
/// between. The worker deletes the blob with its answer.
pub(super) async fn write<F>(
    caller: &Caller<WriteSessions>,
    session: SessionId,
    max_wait: MaxWait,
    store: impl FnOnce(App, String) -> F,
    request: impl FnOnce(String) -> Request,
) -> Result<u64>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    // Checks access before anything is stored.
    caller.begin().await?.session(session).await?;
    let operation: OperationId = caller.origin().id();
    let blob = operation_blob(caller.org, session, operation);
    let storing = store(caller.app.clone(), blob.clone());
    let (app, org, stamp) = (caller.app.clone(), caller.org, caller.stamp());
    let request = request(blob.clone());
    let task = caller.app.0.journal.start(async move {
        storing.await?;
        let submitted = async {
            let mut unit = app.0.journal.begin(org).await?;
            submit(&mut unit, session, operation, &request, &stamp).await?;
            Ok(unit.commit().await?)
        };
        let submitted: Result<()> = submitted.await;
        if submitted.is_err() {
            // The operation was rejected, so nothing reads the blob.
            app.0.blobs.delete(&blob).await?;
        }
        submitted
    });
    match task.await {
        Ok(submitted) => submitted?,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
    match outcome(caller, session, Some(operation), max_wait).await? {
        Some(Outcome::Written { bytes }) => Ok(bytes),
        Some(_) => Err(ApiError::not_found()),
        None => Err(busy()),
    }
}

/// Submits an operation in a unit of work of its own.
async fn submit_alone<S: Scope>(
    caller: &Caller<S>,
    session: SessionId,
    operation: OperationId,
    request: &Request,
) -> Result<()> {
    let mut unit = caller.unit().await?;
    submit(&mut unit, session, operation, request, &caller.stamp()).await?;
    Ok(unit.commit().await?)
}

async fn submit(
    unit: &mut Unit,
    session: SessionId,
    operation: OperationId,
    request: &Request,
    stamp: &Stamp,
) -> Result<()> {
    match unit.operate(session, operation, request, stamp).await? {
        true => Ok(()),
        false => Err(ApiError::conflict(
            "too_many_operations",
            format!("{OPERATIONS_OPEN_MAX} operations of this session are already queued; retry later"),
        )),
    }
}

fn busy() -> ApiError {
    ApiError::conflict("sandbox_busy", "the sandbox is busy; try again")
}

/// Converts the failure of an operation to an error response.
fn failed(code: Failure, message: String) -> ApiError {
    match code {
        Failure::BudgetExceeded => ApiError::payment_required("budget_exceeded", message),
        Failure::PaymentRequired => ApiError::payment_required("payment_required", message),
        Failure::NotFound => ApiError { message: message.into(), ..ApiError::not_found() },
        Failure::Refused => ApiError::invalid("path", message),
        Failure::InUse => ApiError::conflict("sandbox_in_use", message),
        Failure::TooLarge => ApiError::new(ErrorType::TooLarge, message),
        Failure::SandboxUnavailable => ApiError::conflict("sandbox_unavailable", message),
        Failure::LifecycleHookFailed => ApiError::conflict("lifecycle_hook_failed", message),
        Failure::MissingRepoAccess => ApiError::conflict("missing_repo_access", message),
        Failure::SourceFailed => ApiError::conflict("source_failed", message),
        Failure::SkillFailed => ApiError::conflict("skill_failed", message),
        Failure::EnvironmentDeleted => ApiError::conflict("environment_deleted", message),
        Failure::OutcomeUnknown => ApiError::conflict("outcome_unknown", message),
        Failure::Canceled => ApiError::conflict("archived", message),
    }
}

/// Returns the error response of a failure that an exhausted budget caused.
pub(super) fn budget_error(code: Failure, message: &str) -> Option<ApiError> {
    let is_budget = matches!(code, Failure::BudgetExceeded | Failure::PaymentRequired);
    is_budget.then(|| failed(code, message.to_owned()))
}
