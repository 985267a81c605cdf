//! Actions that turns need from callers, and the events that callers send.

use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    content, permissions, questions,
    steer::{check_output, mode_of},
};
use crate::{
    base::limit::ACTION_CLAIM_SECONDS,
    domain::{
        ActionId, SessionId,
        action::{ActionAnswer, ActionKind, Confirmation, Consequences, ToolAnswer},
        content::Content,
        decide::{Command, Input},
        question::Answers,
    },
    http::{
        auth::SessionCaller,
        prelude::*,
        scope::{self, AnswerActions, ApproveActions, ReadLog, ReadSessions, SteerSession},
    },
    journal::{Answered, Executed},
    store::action::{self, PendingFilter},
    wire::{
        Page,
        action::{
            ClaimAction, ClaimedAction, PendingAction, SendEvents, SentEvent, SentEventRef, SentEvents,
            validate_size,
        },
        content::ContentInput,
        message::SessionRef,
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
        caller.check::<ReadSessions>()?;
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
/// Results of custom tools, answers, confirmations, messages and interrupts: all are appended, or none. The same answer again
/// returns the first event. Some of several open actions may be answered; the turn continues when none is open, or when a call of
/// another tool waited for the answer.
#[utoipa::path(post, path = "/sessions/{session_id}/events", tag = "actions", operation_id = "sendEvents",
    params(("session_id" = SessionId, Path)), request_body = SendEvents,
    responses((status = 202, body = SentEvents),
        (status = 200, body = SentEvents, description = "All of them were already sent."), Errors))]
pub(super) async fn send(
    caller: SessionCaller<scope::SendEvents>,
    Idempotent(once, Body(wanted)): Idempotent<Body<SendEvents>>,
) -> Result<Answer> {
    for (index, event) in wanted.events.iter().enumerate() {
        match event {
            SentEvent::Message { mode, output_schema, .. } => {
                caller.check::<SteerSession>()?;
                let checked = check_output(&caller, *mode, output_schema.as_ref()).await;
                checked.map_err(|error| at_event(index, error))?;
            }
            SentEvent::Interrupt {} => caller.check::<SteerSession>()?,
            SentEvent::CustomToolResult { .. } | SentEvent::Answer { .. } => {
                caller.check::<AnswerActions>()?
            }
            SentEvent::ToolConfirmation { .. } => caller.check::<ApproveActions>()?,
        }
    }
    if let Some(index) = wanted.events.iter().position(|event| content::has_new_files(content_of(event))) {
        if let Some(answer) = once.replay(&caller.app, caller.org).await? {
            return Ok(Answer { status: StatusCode::OK, ..answer });
        }
        let open = content::check_open(&caller.app, caller.org, caller.session).await;
        open.map_err(|error| match error.status() {
            StatusCode::NOT_FOUND => error,
            _ => at_event(index, error),
        })?;
    }
    let mut parts = Vec::with_capacity(wanted.events.len());
    for (index, event) in wanted.events.iter().enumerate() {
        parts.push(store_content(&caller, event).await.map_err(|error| at_event(index, error))?);
    }
    let mut answer = once
        .run(&caller.app, caller.org, async |unit: &mut Unit| {
            let mut data = Vec::with_capacity(wanted.events.len());
            let (mut is_new, mut session) = (false, None);
            for (index, (event, parts)) in wanted.events.iter().zip(&parts).enumerate() {
                let sent = match append(&caller, unit, event, parts).await {
                    Ok(sent) => sent,
                    Err(error) => return Err(of_event(&caller, unit, index, error).await),
                };
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
    caller: SessionCaller<scope::SendEvents>,
    Path((_, action)): Path<(String, ActionId)>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<ClaimAction>>,
) -> Result<Answer> {
    let seconds = wanted.seconds.unwrap_or(ACTION_CLAIM_SECONDS.0);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        match unit.tx().action(caller.session, action).await.map(|found| found.state.kind) {
            Ok(ActionKind::Confirmation) => caller.check::<ApproveActions>()?,
            Ok(ActionKind::ToolResult | ActionKind::Question) | Err(_) => caller.check::<AnswerActions>()?,
        }
        let claim = caller.app.0.journal.origin().id();
        let stamp = caller.stamp();
        let claimed_until = unit.claim_action(caller.session, action, claim, seconds, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &ClaimedAction { claim, claimed_until }))
    })
    .await
}

/// Names the event of an error, unless it is that of an unknown session.
async fn of_event(
    caller: &SessionCaller<scope::SendEvents>,
    unit: &mut Unit,
    index: usize,
    error: ApiError,
) -> ApiError {
    if error.status() == StatusCode::NOT_FOUND && unit.tx().session(caller.session).await.is_err() {
        return error;
    }
    at_event(index, error)
}

fn at_event(index: usize, error: ApiError) -> ApiError {
    let field = error.param.as_ref().map(|field| format!(".{field}")).unwrap_or_default();
    let param = Some(format!("events[{index}]{field}"));
    ApiError { param, ..error }
}

/// An event that was sent, and the session after it.
struct Sent {
    event: SentEventRef,
    session: SessionRef,
    is_new: bool,
}

impl Sent {
    fn answer(answered: Answered, kind: &'static str) -> Self {
        let event = SentEventRef { id: Some(answered.event), seq: Some(answered.seq), kind };
        Self { event, session: shown(&answered.session), is_new: answered.is_new }
    }
}

/// Returns the parts of an event as they were sent.
fn content_of(event: &SentEvent) -> &[ContentInput] {
    match event {
        SentEvent::Message { content, .. } | SentEvent::CustomToolResult { content, .. } => content,
        SentEvent::Interrupt {} | SentEvent::Answer { .. } | SentEvent::ToolConfirmation { .. } => &[],
    }
}

/// Stores the files of an event. Returns its parts.
async fn store_content(caller: &SessionCaller<scope::SendEvents>, event: &SentEvent) -> Result<Vec<Content>> {
    content::check_sources(caller, content_of(event))?;
    let parts = content::store(&caller.app, caller.org, content_of(event)).await?;
    if matches!(event, SentEvent::CustomToolResult { .. }) {
        validate_size(&parts, &())
            .map_err(|error| ApiError::invalid("content", format!("`content` {error}")))?;
    }
    Ok(parts)
}

async fn append(
    caller: &SessionCaller<scope::SendEvents>,
    unit: &mut Unit,
    event: &SentEvent,
    parts: &[Content],
) -> Result<Sent> {
    let stamp = caller.stamp();
    let (command, kind) = match event {
        SentEvent::Message { text, mode, output_schema, .. } => {
            if text.is_none() && parts.is_empty() {
                return Err(ApiError::invalid("text", "send `text` or `content`"));
            }
            let (text, content) = content::join(text.clone(), parts.to_vec())?;
            let text = text.unwrap_or_default();
            if mode.is_none()
                && output_schema.is_none()
                && content.is_empty()
                && let Some(answered) =
                    unit.answer_by_message(caller.session, &text, true, &caller.stamp()).await?
            {
                return Ok(Sent::answer(answered, "user.answer"));
            }
            let (mode, output_schema) = (mode_of(*mode), output_schema.clone());
            let input = Input { text, mode, output_schema, content, ..Input::default() };
            (Command::Steer(input), "user.message")
        }
        SentEvent::Interrupt {} => (Command::Interrupt, "user.interrupt"),
        SentEvent::CustomToolResult { action_id, is_error, claim, .. } => {
            let content = parts.to_vec();
            let answer = ToolAnswer { action_id: *action_id, content, is_error: *is_error };
            let answer = ActionAnswer::Result(answer);
            let answered =
                unit.answer(caller.session, answer, Consequences::default(), *claim, &stamp).await?;
            if answered.is_new {
                content::use_files(unit, caller.session, parts).await?;
            }
            return Ok(Sent::answer(answered, "user.custom_tool_result"));
        }
        SentEvent::Answer { action_id, answers, declined, claim } => {
            let answers = Answers { action_id: *action_id, answers: answers.clone(), declined: *declined };
            let answered = questions::answer(caller, unit, answers, *claim).await?;
            return Ok(Sent::answer(answered, "user.answer"));
        }
        SentEvent::ToolConfirmation {
            action_id,
            decision,
            args_hash,
            rule,
            message,
            others,
            then,
            claim,
        } => {
            let confirmation = Confirmation {
                action_id: *action_id,
                decision: *decision,
                rule: rule.clone(),
                message: message.clone(),
                args_hash: args_hash.clone(),
                others: *others,
                then: *then,
            };
            let answered = permissions::confirm(caller, unit, confirmation, *claim).await?;
            return Ok(Sent::answer(answered, "user.tool_confirmation"));
        }
    };
    let Executed { session, events } = unit.execute(caller.session, command, &stamp).await?;
    content::use_files(unit, caller.session, parts).await?;
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
