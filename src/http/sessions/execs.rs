//! Commands that a caller runs in a session's sandbox, independently of the agent.

use std::time::Duration;

use axum::{
    extract::{FromRequestParts, State},
    http::{HeaderMap, StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use super::control::{operate, outcome};
use crate::{
    base::limit::{OPERATION_WAIT, OPERATIONS_OPEN_MAX},
    domain::{
        OperationId, OrgId, SessionId,
        operation::{Answer as Outcome, Failure, OutputStream, Request, Signal},
    },
    http::{
        App,
        auth::{Caller, ReadSessions, WriteSessions},
        body::{Body, OptionalBody},
        error::ApiError,
        idempotency::{Answer, IdempotentRequest, json as respond},
        openapi::Errors,
        page::Query,
        path::{self, Path},
        sessions::events::{StreamMode, full, sse},
    },
    journal::Unit,
    store::operation::OperationRecord,
    stream::{ExecLine, ExecPlace, ExecTail},
    wire::{
        ErrorType,
        operation::{ExecRequest, ExecState, ExecView, KillExec},
    },
};

/// Time that a caller waits for the sandbox: `Prefer: wait=N` (RFC 7240), at most and by default 20
/// seconds.
#[derive(Clone, Copy)]
pub struct MaxWait(pub(super) Duration);

impl FromRequestParts<App> for MaxWait {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let prefers = parts.headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
        let wait = prefers
            .flat_map(|value| value.split([',', ';']))
            .find_map(|preference| preference.trim().strip_prefix("wait="));
        // RFC 7240: preferences that cannot be honored are ignored.
        let seconds = wait.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        Ok(Self(seconds.map_or(OPERATION_WAIT, |seconds| seconds.min(OPERATION_WAIT))))
    }
}

/// Run a command in the session's sandbox
///
/// Creates the sandbox if there is none. Responds when the command has ended. After 20 seconds, or fewer
/// with `Prefer: wait=N`, responds with 202 while the command continues: read it by its id, or follow
/// `exec.completed`. The same `Idempotency-Key` identifies the same command.
#[utoipa::path(post, path = "/sessions/{session_id}/exec", tag = "sandbox", operation_id = "execInSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the end, 0 to 20.")), request_body = ExecRequest,
    responses((status = 200, body = ExecView), (status = 202, body = ExecView), Errors))]
pub async fn create(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path(session): Path<String>,
    once: IdempotentRequest,
    max_wait: MaxWait,
    Body { value: wanted, digest }: Body<ExecRequest>,
) -> Result<Response, ApiError> {
    let session: SessionId = path::id(&session)?;
    let stamp = caller.stamp(app.0.journal.origin());
    let request = wanted.request();
    let submitted = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let operation: OperationId = stamp.origin.id();
        check_queued(unit.operate(session, operation, &request, &stamp).await?)?;
        Ok(Answer::new(StatusCode::OK, &json!({ "id": operation })))
    });
    let submitted = submitted.await?;
    // An identical earlier request has already submitted the command.
    let id = submitted.body["id"].as_str().and_then(|id| id.parse().ok()).ok_or_else(ApiError::not_found)?;
    let seen = app.0.journal.answered(caller.org, session, id, max_wait.0).await?;
    if let Some(Outcome::Failed { code, message }) = &seen.answer
        && let Some(refused) = budget_error(*code, message)
    {
        // The budget was exhausted after the request was accepted: release the key for a retry.
        once.delete_stored(&app, caller.org).await?;
        return Err(refused);
    }
    let view = exec(seen)?;
    let status = match view.state {
        ExecState::Completed | ExecState::Failed => StatusCode::OK,
        ExecState::Queued | ExecState::Running => StatusCode::ACCEPTED,
    };
    let mut response = (status, axum::Json(view)).into_response();
    if submitted.replayed {
        let yes = axum::http::HeaderValue::from_static("true");
        response.headers_mut().insert("idempotency-replayed", yes);
    }
    Ok(response)
}

/// Format of a command's output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExecQuery {
    /// `sse` follows the output as server-sent events until the command ends.
    pub stream: Option<StreamMode>,
    /// Streams only: `id` of the last received frame.
    pub cursor: Option<String>,
}

/// Get a command, or follow its output with `stream=sse`
///
/// The output so far is included; it is retained for 1 day.
///
/// A stream sends the output (`exec.output`: `stream` and `text`), then the result (`exec.ended`:
/// `state`, `exit_code`, `cause`, `stdout_bytes`, `stderr_bytes`, `duration_ms`, `error`), and ends.
/// `Last-Event-ID` or `cursor` resumes an interrupted stream on any server process.
#[utoipa::path(get, path = "/sessions/{session_id}/exec/{exec_id}", tag = "sandbox", operation_id = "getExec",
    params(("session_id" = SessionId, Path), ("exec_id" = OperationId, Path), ExecQuery,
        ("Last-Event-ID" = Option<String>, Header,
        description = "`id` of the last received frame; the stream resumes after it.")),
    responses((status = 200, content(
        (ExecView = "application/json"), (String = "text/event-stream"))), Errors))]
pub async fn get(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Path((session, id)): Path<(String, String)>,
    headers: HeaderMap,
    Query(query): Query<ExecQuery>,
) -> Result<Response, ApiError> {
    let (session, id): (SessionId, OperationId) = (path::id(&session)?, path::id(&id)?);
    let view = read(&app, caller.org, session, id).await?;
    // An invalid position is rejected even if no stream is requested.
    let place = last_seen(&headers, query.cursor)?;
    let Some(StreamMode::Sse) = query.stream else { return Ok(respond(&view)) };
    let tail = ExecTail { org: caller.org, session, exec: id, place: place.unwrap_or_default() };
    let lines = app.0.streams.follow_exec(tail).map_err(full)?;
    Ok(sse(app, caller.proof, lines, |line| match line {
        ExecLine::Frame { place, json } => format!("id: {place}\ndata: {json}\n\n"),
        ExecLine::Alive => ": alive\n\n".to_owned(),
    }))
}

/// Returns the position at which a stream was interrupted. A reconnecting browser repeats its first URL,
/// so the header is newer than the query.
fn last_seen(headers: &HeaderMap, cursor: Option<String>) -> Result<Option<ExecPlace>, ApiError> {
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default().to_owned());
    let (param, id) = match (header, cursor) {
        (Some(id), _) => ("Last-Event-ID", id),
        (None, Some(id)) => ("cursor", id),
        (None, None) => return Ok(None),
    };
    let refused = |()| {
        ApiError::invalid(param, format!("`{param}` is not the id of a frame of this stream; leave it out"))
    };
    id.parse().map(Some).map_err(refused)
}

/// Reads a command with its output so far.
async fn read(app: &App, org: OrgId, session: SessionId, id: OperationId) -> Result<ExecView, ApiError> {
    let mut tx = app.0.store.begin(org).await?;
    let mut view = exec(tx.operation(session, id).await?)?;
    if view.exit_code.is_some() {
        return Ok(view);
    }
    for chunk in tx.output(session, id, (0, 0)).await? {
        let (text, bytes) = match chunk.stream {
            OutputStream::Stdout => (&mut view.stdout, &mut view.stdout_bytes),
            OutputStream::Stderr => (&mut view.stderr, &mut view.stderr_bytes),
        };
        text.push_str(&chunk.content);
        *bytes = chunk.raw_end;
    }
    Ok(view)
}

/// End a command and its child processes
///
/// Sends TERM, then KILL one second later. Responds when the command has ended, or after 20 seconds. An
/// ended command is unchanged.
///
/// With `signal`, sends that signal instead; unless it is KILL, the response does not wait for its
/// effect.
#[utoipa::path(post, path = "/sessions/{session_id}/exec/{exec_id}/kill", tag = "sandbox", operation_id = "killExec",
    params(("session_id" = SessionId, Path), ("exec_id" = OperationId, Path)), request_body = Option<KillExec>,
    responses((status = 200, body = ExecView), (status = 202, body = ExecView), Errors))]
pub async fn kill(
    State(app): State<App>,
    caller: Caller<WriteSessions>,
    Path((session, id)): Path<(String, String)>,
    once: IdempotentRequest,
    max_wait: MaxWait,
    OptionalBody(Body { value: KillExec { signal }, digest }): OptionalBody<KillExec>,
) -> Result<Response, ApiError> {
    let (session, id): (SessionId, OperationId) = (path::id(&session)?, path::id(&id)?);
    let stamp = caller.stamp(app.0.journal.origin());
    let submitted = once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let seen = unit.tx().operation(session, id).await?;
        let is_over = seen.answer.is_some();
        exec(seen)?;
        match is_over {
            true => Ok(Answer::new(StatusCode::OK, &json!({}))),
            false => operate(unit, session, &Request::Kill { exec: id, signal }, &stamp).await,
        }
    });
    outcome(&app, caller.org, session, &submitted.await?, max_wait).await?;
    if matches!(signal, None | Some(Signal::Kill)) {
        app.0.journal.answered(caller.org, session, id, max_wait.0).await?;
    }
    let view = read(&app, caller.org, session, id).await?;
    let is_over = matches!(view.state, ExecState::Completed | ExecState::Failed);
    let status = if is_over { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(view)).into_response())
}

/// Returns an error if the session's operation queue is full.
pub fn check_queued(was_taken: bool) -> Result<(), ApiError> {
    match was_taken {
        true => Ok(()),
        false => Err(ApiError::conflict(
            "too_many_operations",
            format!("{OPERATIONS_OPEN_MAX} operations of this session are already queued; retry later"),
        )),
    }
}

/// Waits for the result of a file operation.
pub async fn file(
    app: &App,
    org: OrgId,
    session: SessionId,
    operation: OperationId,
    max_wait: MaxWait,
) -> Result<Outcome, ApiError> {
    let seen = app.0.journal.answered(org, session, operation, max_wait.0).await?;
    match seen.answer {
        Some(Outcome::Failed { code, message }) => Err(failed(code, message)),
        Some(answer) => Ok(answer),
        None => Err(ApiError::conflict("sandbox_busy", "the sandbox is busy; try again")),
    }
}

/// Converts the failure of an operation to an error response.
pub fn failed(code: Failure, message: String) -> ApiError {
    if let Some(budget_error) = budget_error(code, &message) {
        return budget_error;
    }
    match code {
        Failure::NotFound => ApiError { message: message.into(), ..ApiError::not_found() },
        Failure::Refused => ApiError::invalid("path", message),
        Failure::InUse => ApiError::conflict("sandbox_in_use", message),
        Failure::TooLarge => ApiError::new(ErrorType::TooLarge, message),
        Failure::SandboxUnavailable => ApiError::conflict("sandbox_unavailable", message),
        Failure::LifecycleHookFailed => ApiError::conflict("lifecycle_hook_failed", message),
        Failure::MissingRepoAccess => ApiError::conflict("missing_repo_access", message),
        Failure::SourceFailed => ApiError::conflict("source_failed", message),
        Failure::EnvironmentDeleted => ApiError::conflict("environment_deleted", message),
        Failure::OutcomeUnknown => ApiError::conflict("outcome_unknown", message),
        Failure::Canceled => ApiError::conflict("archived", message),
        Failure::BudgetExceeded | Failure::PaymentRequired => {
            unreachable!("budget failures were handled above")
        }
    }
}

fn budget_error(code: Failure, message: &str) -> Option<ApiError> {
    match code {
        Failure::BudgetExceeded => Some(ApiError::payment_required("budget_exceeded", message.to_owned())),
        Failure::PaymentRequired => Some(ApiError::payment_required("payment_required", message.to_owned())),
        _ => None,
    }
}

fn exec(seen: OperationRecord) -> Result<ExecView, ApiError> {
    let Request::Exec { command, .. } = seen.request else { return Err(ApiError::not_found()) };
    let open = ExecView::open(seen.id, command, seen.created_at, seen.started_at);
    Ok(match seen.answer {
        Some(answer) => ExecView { completed_at: seen.completed_at, ..open.answered(answer) },
        None => open,
    })
}
