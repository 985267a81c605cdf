//! Results, turns and steps of a session.

use serde::Deserialize;
use serde_json::Value;

use super::change::request;
use crate::{
    domain::{Entry, Event, Level, SessionId, Turn, TurnId, decide::Command, event::Body, turn::YieldReason},
    http::{
        auth::SessionCaller,
        prelude::*,
        scope::{ReadLog, ReadSessions, WriteSessions},
    },
    store::log::Range,
    wire::{
        Page,
        message::Steered,
        turn::{ResultView, StepView, TurnView},
    },
};

/// Get the result of the last turn
///
/// Returns the last turn and the agent's last message to the user.
#[utoipa::path(get, path = "/sessions/{session_id}/result", tag = "turns", operation_id = "getResult",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = ResultView), Errors))]
pub(super) async fn result(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let session = tx.session(id).await?;
    let Some(last) = session.last_turn() else {
        let none = ResultView { last_turn: None, result: None, output: None, output_repairs: 0 };
        return Ok(respond(&none));
    };
    let turn = tx.turn(id, last.id).await?;
    let page = match turn.result_event_id {
        Some(event) => Some(tx.event(id, event).await?),
        None => None,
    };
    drop(tx);
    let (mut result, mut submitted) = (None, Submitted::default());
    if let Some(page) = page {
        let entry = page.entry(&caller.app.0.store).await?;
        result = Some(super::events::view(&entry)?);
        submitted = output_of(&caller, &turn, entry).await?;
    }
    let Submitted { output, output_repairs } = submitted;
    let output_repairs = match turn.yield_reason {
        Some(YieldReason::OutputInvalid) => rejections(&caller, id, turn.id).await?,
        _ => output_repairs.unwrap_or_default(),
    };
    let last_turn = TurnView { output: output.clone(), ..turn.into() };
    Ok(respond(&ResultView { last_turn: Some(last_turn), result, output, output_repairs }))
}

/// Output in the body of an `agent.message` or `turn.completed`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Submitted {
    output: Option<Value>,
    output_repairs: Option<u32>,
}

impl Submitted {
    fn read(body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body).map_err(|error| crate::store::Error::Corrupt(error.to_string()).into())
    }
}

/// Returns the output of a completed turn, given the event of its result.
async fn output_of(caller: &Caller<ReadSessions>, turn: &Turn, result: Entry) -> Result<Submitted> {
    if turn.yield_reason != Some(YieldReason::Completed) {
        return Ok(Submitted::default());
    }
    let shown = Submitted::read(result.body.as_bytes())?;
    // A truncated output is missing here, its repairs never are.
    if result.content_ref.is_none() || shown.output_repairs.is_none() {
        return Ok(shown);
    }
    Submitted::read(&super::events::whole(&caller.app, caller.org, result).await?)
}

/// Returns how many outputs of a turn without one were rejected before its last end.
async fn rejections(caller: &Caller<ReadSessions>, session: SessionId, turn: TurnId) -> Result<u32> {
    let newest = |event: &Event| match &event.draft.body {
        Body::TurnCompleted(end) if end.turn_id == turn => Some(end.output_repairs),
        _ => None,
    };
    let found = caller.app.0.journal.newest(caller.org, session, &["turn.completed"], newest).await?;
    Ok(found.unwrap_or_default())
}

/// List turns
///
/// Newest first.
#[utoipa::path(get, path = "/sessions/{session_id}/turns", tag = "turns", operation_id = "listTurns",
    params(("session_id" = SessionId, Path), PageQuery),
    responses((status = 200, body = Page<TurnView>), Errors))]
pub(super) async fn list(
    caller: Caller<ReadSessions>,
    Path(id): Path<SessionId>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    let list = caller.list("turns", &id).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    tx.session(id).await?;
    let turns = tx.turns(id, list.below, list.limit()).await?;
    Ok(respond(&list.page(turns, |turn| turn.id, TurnView::from)))
}

/// Get a turn
#[utoipa::path(get, path = "/sessions/{session_id}/turns/{turn_id}", tag = "turns", operation_id = "getTurn",
    params(("session_id" = SessionId, Path), ("turn_id" = TurnId, Path)),
    responses((status = 200, body = TurnView), Errors))]
pub(super) async fn get(
    caller: Caller<ReadSessions>,
    Path((session, turn)): Path<(SessionId, TurnId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let turn = tx.turn(session, turn).await?;
    let mut submitted = Submitted::default();
    if let Some(event) = turn.result_event_id {
        let page = tx.event(session, event).await?;
        drop(tx);
        submitted = output_of(&caller, &turn, page.entry(&caller.app.0.store).await?).await?;
    }
    Ok(respond(&TurnView { output: submitted.output, ..turn.into() }))
}

/// Retry a failed turn
///
/// Queues the last turn of the session again, if it ended with an error: the same turn, as its next attempt. The model
/// continues after the last complete step; earlier usage counts on, and the operator's fee is not charged again.
#[utoipa::path(post, path = "/sessions/{session_id}/turns/{turn_id}/retry", tag = "turns", operation_id = "retryTurn",
    params(("session_id" = SessionId, Path), ("turn_id" = TurnId, Path)),
    responses((status = 202, body = Steered), (status = 200, body = Steered,
        description = "The request repeats an `Idempotency-Key`."), Errors))]
pub(super) async fn retry(
    caller: Caller<WriteSessions>,
    Path((id, turn)): Path<(SessionId, TurnId)>,
    once: IdempotentRequest,
) -> Result<Answer> {
    request(&caller, &once, async |unit, stamp| {
        unit.tx().turn(id, turn).await?;
        Ok(unit.execute(id, Command::Retry(turn), stamp).await?)
    })
    .await
}

/// List steps
///
/// Every completed model call with its usage, oldest first.
#[utoipa::path(get, path = "/sessions/{session_id}/steps", tag = "turns", operation_id = "listSteps",
    params(("session_id" = SessionId, Path), PageQuery),
    responses((status = 200, body = Page<StepView>), Errors))]
pub(super) async fn steps(
    caller: SessionCaller<ReadLog>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    if caller.level < Level::Internal {
        // Steps are internal events; a client token needs the level `internal` to read them.
        return Err(ApiError::not_found());
    }
    let list = caller.list("steps", &caller.session).at(query.limit, query.cursor.as_deref())?;
    let after = list.below.unwrap_or_default();
    let mut tx = caller.begin().await?;
    tx.session(caller.session).await?;
    let kind = Some("step.completed".to_owned());
    let range = Range { after, level: Level::Internal, kind, turn: None, limit: list.limit() };
    let page = tx.events(caller.session, &range).await?;
    drop(tx);
    let entries = page.entries(&caller.app.0.store).await?;
    let steps: Vec<_> = entries.iter().map(step).collect::<Result<_>>()?;
    Ok(respond(&list.page(steps, |step| step.seq, |step| step)))
}

fn step(entry: &Entry) -> Result<StepView> {
    // A truncated body keeps its structure, so all fields except the blocks are complete.
    let event = entry.event(None).map_err(|error| crate::store::Error::Corrupt(error.to_string()))?;
    let Body::StepCompleted(step) = event.draft.body else { return Err(ApiError::not_found()) };
    Ok(StepView {
        id: entry.step_id,
        turn_id: entry.turn_id,
        seq: entry.seq,
        index: step.index,
        attempt: step.attempt,
        provider: step.provider,
        model: step.model,
        stop: step.stop,
        usage: step.usage,
        cost_micros: step.cost_micros,
        price_version: step.price_version,
        duration_ms: step.duration_ms,
        completed_at: entry.ts,
    })
}
