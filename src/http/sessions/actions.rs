//! Actions that turns need from callers, and the events that callers send.

use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    base::limit::ACTION_CLAIM_SECONDS,
    domain::{
        ActionId, SessionId,
        action::{ActionKind, ToolAnswer},
        decide::{Command, Input},
    },
    http::{
        auth::SessionCaller,
        prelude::*,
        scope::{AnswerActions, ReadLog, ReadSessions, SteerSession},
    },
    journal::Executed,
    store::action::{self, PendingFilter},
    wire::{
        Page,
        action::{
            ClaimAction, ClaimedAction, PendingAction, SendEvents, SentEvent, SentEventRef, SentEvents,
        },
        session::SessionRef,
    },
};

/// Filters of a list of actions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PendingQuery {
    /// Only actions of this kind.
    #[param(inline)]
    kind: Option<ActionKind>,
    /// Also actions of the sessions below this one.
    #[serde(default)]
    children: bool,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    cursor: Option<String>,
    /// A client token.
    #[serde(rename = "token")]
    #[param(rename = "token")]
    _token: Option<String>, // read by the caller's extractor
}

/// Filters of a list of the organization's actions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AllPendingQuery {
    /// Only actions of this kind.
    #[param(inline)]
    kind: Option<ActionKind>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    cursor: Option<String>,
}

/// List the open actions of a session
///
/// What the running turn needs from a caller, oldest first.
#[utoipa::path(get, path = "/sessions/{session_id}/pending", tag = "actions", operation_id = "listPending",
    params(("session_id" = SessionId, Path), PendingQuery),
    responses((status = 200, body = Page<PendingAction>), Errors))]
pub(super) async fn pending(
    caller: SessionCaller<ReadLog>,
    Query(query): Query<PendingQuery>,
) -> Result<Response> {
    if query.children {
        // A client token is one of this session only.
        caller.check_token::<ReadSessions>()?;
    }
    let filters = (caller.session, query.kind, query.children);
    let list = caller.list("pending", &filters).at(query.limit, query.cursor.as_deref())?;
    let filter = PendingFilter {
        session: Some(caller.session),
        with_children: query.children,
        kind: query.kind,
        after: list.below,
    };
    let mut tx = caller.begin().await?;
    tx.session(caller.session).await?;
    let actions = tx.pending_actions(&filter, list.limit()).await?;
    Ok(respond(&list.page(actions, |pending| pending.action.id, view)))
}

/// List the open actions of the organization
///
/// Of all sessions, oldest first.
#[utoipa::path(get, path = "/pending", tag = "actions", operation_id = "listAllPending",
    params(AllPendingQuery), responses((status = 200, body = Page<PendingAction>), Errors))]
pub(super) async fn all_pending(
    caller: Caller<ReadSessions>,
    Query(query): Query<AllPendingQuery>,
) -> Result<Response> {
    let list = caller.list("all_pending", &query.kind).at(query.limit, query.cursor.as_deref())?;
    let filter = PendingFilter { kind: query.kind, after: list.below, ..PendingFilter::default() };
    let actions = caller.begin().await?.pending_actions(&filter, list.limit()).await?;
    Ok(respond(&list.page(actions, |pending| pending.action.id, view)))
}

/// Send events to a session
///
/// Results of custom tools, messages and interrupts: all are appended, or none. The same result again returns the
/// first event. Some of several open actions may be answered; the turn continues when none is open, or when a call of
/// another tool waited for the answer.
#[utoipa::path(post, path = "/sessions/{session_id}/events", tag = "actions", operation_id = "sendEvents",
    params(("session_id" = SessionId, Path)), request_body = SendEvents,
    responses((status = 202, body = SentEvents),
        (status = 200, body = SentEvents, description = "All of them were already sent."), Errors))]
pub(super) async fn send(
    caller: SessionCaller<AnswerActions>,
    Idempotent(once, Body(wanted)): Idempotent<Body<SendEvents>>,
) -> Result<Answer> {
    let steers = |event: &SentEvent| !matches!(event, SentEvent::CustomToolResult { .. });
    if wanted.events.iter().any(steers) {
        caller.check_token::<SteerSession>()?;
    }
    let mut answer = once
        .run(&caller.app, caller.org, async |unit: &mut Unit| {
            let mut data = Vec::with_capacity(wanted.events.len());
            let (mut is_new, mut session) = (false, None);
            // Of an unknown session, the error names no event.
            unit.tx().lock_session(caller.session).await?;
            for (index, event) in wanted.events.iter().enumerate() {
                let sent = append(&caller, unit, event).await.map_err(|error| ApiError {
                    param: error.param.clone().or_else(|| Some(format!("events[{index}]"))),
                    ..error
                })?;
                is_new |= sent.is_new;
                data.push(sent.event);
                session = Some(sent.session);
            }
            let Some(session) = session else { unreachable!("there is at least one event") };
            let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
            Ok(Answer::new(status, &SentEvents { data, session }))
        })
        .await?;
    if answer.replayed {
        answer.status = StatusCode::OK;
    }
    Ok(answer)
}

/// Claim an action
///
/// Of several callers that handle an action, one runs it: until the claim ends, only an answer with it is accepted.
/// Whoever has a claim may claim again when it has ended.
#[utoipa::path(post, path = "/sessions/{session_id}/pending/{action_id}/claim", tag = "actions",
    operation_id = "claimAction", params(("session_id" = SessionId, Path), ("action_id" = ActionId, Path)),
    request_body = ClaimAction, responses((status = 200, body = ClaimedAction), Errors))]
pub(super) async fn claim(
    caller: SessionCaller<AnswerActions>,
    Path((_, action)): Path<(String, ActionId)>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<ClaimAction>>,
) -> Result<Answer> {
    let seconds = wanted.seconds.unwrap_or(ACTION_CLAIM_SECONDS.0);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let claim = caller.app.0.journal.origin().id();
        let stamp = caller.stamp();
        let claimed_until = unit.claim_action(caller.session, action, claim, seconds, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &ClaimedAction { claim, claimed_until }))
    })
    .await
}

/// An event that was sent, and the session after it.
struct Sent {
    event: SentEventRef,
    session: SessionRef,
    is_new: bool,
}

async fn append(caller: &SessionCaller<AnswerActions>, unit: &mut Unit, event: &SentEvent) -> Result<Sent> {
    let stamp = caller.stamp();
    let (command, kind) = match event {
        SentEvent::Message { text } => {
            (Command::Steer(Input { text: text.clone(), ..Input::default() }), "user.message")
        }
        SentEvent::Interrupt {} => (Command::Interrupt, "user.interrupt"),
        SentEvent::CustomToolResult { action_id, content, is_error, claim } => {
            let answer = ToolAnswer { action_id: *action_id, content: content.clone(), is_error: *is_error };
            let answered = unit.answer(caller.session, answer, *claim, &stamp).await?;
            let kind = "user.custom_tool_result";
            let event = SentEventRef { id: Some(answered.event), seq: Some(answered.seq), kind };
            return Ok(Sent { event, session: shown(&answered.session), is_new: answered.is_new });
        }
    };
    let Executed { session, events } = unit.execute(caller.session, command, &stamp).await?;
    let first = events.first();
    let event =
        SentEventRef { id: first.map(|event| event.draft.id), seq: first.map(|event| event.seq), kind };
    Ok(Sent { event, session: shown(&session), is_new: first.is_some() })
}

fn shown(session: &crate::domain::Session) -> SessionRef {
    SessionRef { id: session.id, status: session.status, head: session.head }
}

fn view(pending: action::PendingAction) -> PendingAction {
    PendingAction {
        action: pending.action,
        session_id: pending.session,
        claimed_until: pending.claimed_until,
    }
}
