//! Commands that a caller runs in a session's sandbox, independently of the agent.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use super::operations::{MaxWait, budget_error, operate, outcome, seen, submitted_by};
use crate::{
    domain::{
        OperationId, SessionId,
        operation::{Answer as Outcome, OutputStream, Request, Signal},
    },
    http::{
        prelude::*,
        scope::{ReadSessions, Scope, WriteSessions},
        sessions::events::{StreamMode, full, sse},
    },
    store::operation::OperationRecord,
    stream::{ExecLine, ExecPlace, ExecTail},
    wire::operation::{ExecRequest, ExecState, ExecView, KillExec},
};

/// Run a command in the session's sandbox
///
/// Creates the sandbox if there is none. Responds when the command has ended. After 20 seconds, or fewer
/// with `Prefer: wait=N`, responds with 202 while the command continues: read it by its id, or follow
/// `exec.completed`. The same `Idempotency-Key` identifies the same command.
#[utoipa::path(post, path = "/sessions/{session_id}/exec", tag = "sandbox", operation_id = "execInSession",
    params(("session_id" = SessionId, Path), ("Prefer" = Option<String>, Header,
        description = "`wait=N`: seconds to wait for the end, 0 to 20.")), request_body = ExecRequest,
    responses((status = 200, body = ExecView), (status = 202, body = ExecView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteSessions>,
    Path(session): Path<SessionId>,
    max_wait: MaxWait,
    Idempotent(once, Body(wanted)): Idempotent<Body<ExecRequest>>,
) -> Result<Answer> {
    let stamp = caller.stamp();
    let request = wanted.request();
    let submitted = once
        .run(&caller.app, caller.org, async |unit: &mut Unit| operate(unit, session, &request, &stamp).await);
    let submitted = submitted.await?;
    let id = submitted_by(&submitted).ok_or_else(ApiError::not_found)?;
    let seen = seen(&caller, session, id, max_wait).await?;
    if let Some(Outcome::Failed { code, message }) = &seen.answer
        && let Some(refused) = budget_error(*code, message)
    {
        // The budget was exhausted after the request was accepted: release the key for a retry.
        once.delete_stored(&caller.app, caller.org).await?;
        return Err(refused);
    }
    let view = exec(seen)?;
    Ok(Answer { replayed: submitted.replayed, ..Answer::new(status_of(&view), &view) })
}

/// Format of a command's output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExecQuery {
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
pub(super) async fn get(
    caller: Caller<ReadSessions>,
    Path((session, id)): Path<(SessionId, OperationId)>,
    headers: HeaderMap,
    Query(query): Query<ExecQuery>,
) -> Result<Response> {
    let view = read(&caller, session, id).await?;
    // An invalid position is rejected even if no stream is requested.
    let place = last_seen(&headers, query.cursor)?;
    let Some(StreamMode::Sse) = query.stream else { return Ok(respond(&view)) };
    let tail = ExecTail { org: caller.org, session, exec: id, place: place.unwrap_or_default() };
    let lines = caller.app.0.streams.follow_exec(tail).map_err(full)?;
    Ok(sse(caller.app, caller.proof, lines, |line| match line {
        ExecLine::Frame { place, json } => format!("id: {place}\ndata: {json}\n\n"),
        ExecLine::Alive => ": alive\n\n".to_owned(),
    }))
}

/// Returns the position at which a stream was interrupted. A reconnecting browser repeats its first URL,
/// so the header is newer than the query.
fn last_seen(headers: &HeaderMap, cursor: Option<String>) -> Result<Option<ExecPlace>> {
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
async fn read<S: Scope>(caller: &Caller<S>, session: SessionId, id: OperationId) -> Result<ExecView> {
    let mut tx = caller.begin().await?;
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
///
/// A command that is queued ends at once and never runs: `cause` is `killed`, `started_at` is null. USR1 and USR2 do
/// not end it; the response is 404.
#[utoipa::path(post, path = "/sessions/{session_id}/exec/{exec_id}/kill", tag = "sandbox", operation_id = "killExec",
    params(("session_id" = SessionId, Path), ("exec_id" = OperationId, Path)), request_body = KillExec,
    responses((status = 200, body = ExecView), (status = 202, body = ExecView), Errors))]
pub(super) async fn kill(
    caller: Caller<WriteSessions>,
    Path((session, id)): Path<(SessionId, OperationId)>,
    max_wait: MaxWait,
    Idempotent(once, OptionalBody(KillExec { signal })): Idempotent<OptionalBody<KillExec>>,
) -> Result<Answer> {
    let stamp = caller.stamp();
    let submitted = once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let over = || Answer::new(StatusCode::OK, &json!({}));
        let seen = unit.tx().operation(session, id).await?;
        let is_over = seen.answer.is_some();
        exec(seen)?;
        if is_over {
            return Ok(over());
        }
        let has_ended = match Outcome::killed_in_queue(signal) {
            Some(end) => unit.end_queued_exec(session, id, &end).await?,
            None => false,
        };
        let submitted = operate(unit, session, &Request::Kill { exec: id, signal }, &stamp).await?;
        // Nobody has to wait for the worker that records an end in the queue.
        Ok(if has_ended { over() } else { submitted })
    });
    outcome(&caller, session, submitted_by(&submitted.await?), max_wait).await?;
    if matches!(signal, None | Some(Signal::Kill)) {
        seen(&caller, session, id, max_wait).await?;
    }
    let view = read(&caller, session, id).await?;
    Ok(Answer::new(status_of(&view), &view))
}

fn status_of(view: &ExecView) -> StatusCode {
    match view.state {
        ExecState::Completed | ExecState::Failed => StatusCode::OK,
        ExecState::Queued | ExecState::Running => StatusCode::ACCEPTED,
    }
}

fn exec(seen: OperationRecord) -> Result<ExecView> {
    let Request::Exec { command, .. } = seen.request else { return Err(ApiError::not_found()) };
    let open = ExecView::open(seen.id, command, seen.created_at, seen.started_at);
    Ok(match seen.answer {
        Some(answer) => ExecView { completed_at: seen.completed_at, ..open.answered(answer) },
        None => open,
    })
}
