//! Messages to a session.

use serde_json::{Map, Value};

use super::content;

use crate::{
    domain::{
        content::Content,
        decide::{Command, Input, InputMode},
    },
    http::{
        agents::check_output_schema,
        auth::SessionCaller,
        prelude::*,
        scope::{Scope, SteerSession, WriteSessions},
    },
    journal::Answered,
    store::idempotency::{Claimed, Slot, SlotState},
    wire::message::{EventRef, SessionRef, Steer, SteerMode, Steered},
};

/// Send a message to a session
///
/// Starts a turn if the session is idle. While a turn runs, the message waits for the next one, or does what `mode` says.
#[utoipa::path(post, path = "/sessions/{session_id}/messages", tag = "sessions", operation_id = "steerSession",
    params(("session_id" = crate::domain::SessionId, Path)), request_body = Steer,
    responses((status = 202, body = Steered),
        (status = 200, body = Steered, description = "The message was already sent."), Errors))]
pub(super) async fn steer(
    caller: SessionCaller<SteerSession>,
    Idempotent(once, Body(message)): Idempotent<Body<Steer>>,
) -> Result<Answer> {
    check_output(&caller, message.mode, message.output_schema.as_ref()).await?;
    content::check_sources(&caller, &message.content)?;
    let own = own_key(&message).map(|key| Slot {
        scope: caller.message_keys(),
        key,
        fingerprint: once.digest(),
        earlier: None,
    });
    if content::has_new_files(&message.content) {
        if let Some(answer) = replay(&caller, &once, own.clone()).await? {
            return Ok(Answer { status: StatusCode::OK, ..answer });
        }
        content::check_open(&caller.app, caller.org, caller.session).await?;
    }
    let parts = content::store(&caller.app, caller.org, &message.content).await?;
    let may_answer = message.mode.is_none() && message.envelope.is_none();
    let input = input(message, parts)?;
    let mut answer = once
        .run(&caller.app, caller.org, async |unit: &mut Unit| match own {
            Some(slot) => steer_once(&caller, unit, input, may_answer, slot).await,
            None => append(&caller, unit, input, may_answer).await,
        })
        .await?;
    if answer.replayed {
        answer.status = StatusCode::OK;
    }
    Ok(answer)
}

/// Returns the response of an equal message that was accepted before.
async fn replay(
    caller: &SessionCaller<SteerSession>,
    once: &IdempotentRequest,
    own: Option<Slot>,
) -> Result<Option<Answer>> {
    if let Some(answer) = once.replay(&caller.app, caller.org).await? {
        return Ok(Some(answer));
    }
    let Some(slot) = own else { return Ok(None) };
    // Without a commit, nothing is claimed.
    let mut unit = caller.app.0.journal.begin(caller.org).await?;
    Ok(claim(caller, &mut unit, slot).await?.err())
}

/// Returns the deduplication key contained in the message.
fn own_key(message: &Steer) -> Option<String> {
    let enveloped = || {
        let envelope = message.envelope.as_ref()?;
        Some(format!("{}\n{}", envelope.source.as_deref().unwrap_or_default(), envelope.id.as_ref()?))
    };
    message.idempotency_key.clone().or_else(enveloped)
}

async fn steer_once(
    caller: &SessionCaller<SteerSession>,
    unit: &mut Unit,
    input: Input,
    may_answer: bool,
    slot: Slot,
) -> Result<Answer> {
    let claimed = match claim(caller, unit, slot).await? {
        Ok(claimed) => claimed,
        Err(answer) => return Ok(answer),
    };
    let answer = append(caller, unit, input, may_answer).await?;
    let (status, body) = (answer.status.as_u16(), answer.body.to_string());
    unit.tx().answer(claimed, status, body.as_bytes(), caller.app.0.journal.origin()).await?;
    Ok(answer)
}

/// Claims the slot of the message's own key, or returns the stored response.
async fn claim(
    caller: &SessionCaller<SteerSession>,
    unit: &mut Unit,
    slot: Slot,
) -> Result<Result<Claimed, Answer>> {
    match unit.tx().claim_slot(slot, caller.app.0.store.master()).await? {
        SlotState::Fresh(claimed) => Ok(Ok(claimed)),
        SlotState::Replay { body, .. } => {
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            Ok(Err(Answer { replayed: true, ..Answer::new(StatusCode::OK, &body) }))
        }
        SlotState::Mismatch => Err(ApiError {
            param: Some("idempotency_key".to_owned()),
            ..ApiError::conflict("idempotency_mismatch", "this key was used for another message")
        }),
    }
}

async fn append(
    caller: &SessionCaller<SteerSession>,
    unit: &mut Unit,
    input: Input,
    may_answer: bool,
) -> Result<Answer> {
    if may_answer
        && let (None, []) = (&input.output_schema, &*input.content)
        && let Some(Answered { event, seq, session, .. }) =
            unit.answer_by_message(caller.session, &input.text, true, &caller.stamp()).await?
    {
        let event = EventRef { id: event, seq, processed_at: None };
        let session = SessionRef { id: session.id, status: session.status, head: session.head };
        return Ok(Answer::new(StatusCode::ACCEPTED, &Steered { event, session }));
    }
    let content = input.content.clone();
    let executed = unit.execute(caller.session, Command::Steer(input), &caller.stamp()).await?;
    content::use_files(unit, caller.session, &content).await?;
    let Some(event) = executed.events.first() else { unreachable!("a message is always an event") };
    Ok(Answer::new(StatusCode::ACCEPTED, &Steered::of(event, &executed.session)))
}

/// Checks the schema that a message names for the output of its turn. A client token may not name one: the program that
/// reads the output relies on that of the session.
pub(super) async fn check_output<S: Scope>(
    caller: &SessionCaller<S>,
    mode: Option<SteerMode>,
    schema: Option<&Map<String, Value>>,
) -> Result<()> {
    if schema.is_none() {
        return Ok(());
    }
    caller.check::<WriteSessions>()?;
    if mode == Some(SteerMode::Steer) {
        let message = "the output schema of a running turn is fixed; send the message with another `mode`";
        return Err(ApiError::invalid("output_schema", message));
    }
    check_output_schema(schema).await
}

/// Returns the effect of a message; by default it waits.
pub(super) fn mode_of(mode: Option<SteerMode>) -> InputMode {
    match mode {
        None | Some(SteerMode::Queue) => InputMode::Queue,
        Some(SteerMode::Steer) => InputMode::Steer,
        Some(SteerMode::Interrupt) => InputMode::Interrupt,
    }
}

fn input(message: Steer, parts: Vec<Content>) -> Result<Input> {
    let (mode, output_schema) = (mode_of(message.mode), message.output_schema);
    let base = Input { mode, output_schema, ..Input::default() };
    let (text, base) = match (message.text, message.envelope) {
        (None, None) if parts.is_empty() => {
            return Err(ApiError::invalid("text", "send `text`, `content` or `envelope`"));
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("envelope", "send `text` or `envelope`, not both"));
        }
        (text, None) => (text, base),
        (None, Some(envelope)) => {
            let (text, refs) = (envelope.text.clone(), envelope.refs.clone());
            let rest = match serde_json::to_value(&envelope) {
                Ok(Value::Object(fields)) => {
                    fields.into_iter().filter(|(name, _)| name != "text" && name != "refs")
                }
                _ => unreachable!("an envelope is an object"),
            };
            (Some(text), Input { envelope: Some(rest.collect()), refs, ..base })
        }
    };
    let (text, content) = content::join(text, parts)?;
    Ok(Input { text: text.unwrap_or_default(), content, ..base })
}
