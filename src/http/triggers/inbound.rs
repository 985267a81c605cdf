//! Inbound messages to a trigger, authenticated by a signature with the trigger's secret.
//!
//! An unknown trigger, a disabled one, one of a suspended organization and a wrong signature get the same
//! response. The message is interpreted only after these checks, and its content never determines the
//! recorded origin of the session.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, request::Parts},
};
use serde_json::{Map, Value, json};

use crate::{
    base::{
        ExposeSecret,
        limit::{IDEMPOTENCY_KEY_BYTES_MAX, METADATA_BYTES_MAX, TEXT_BYTES_MAX, WEBHOOK_TOLERANCE_SECONDS},
        seal::sha256,
        text::hex,
    },
    domain::{
        Actor, ActorKind, TriggerId,
        decide::{Input, Stamp},
        github::{Event, GithubActivity},
        session::Source,
        source::Repository,
        trigger::{Filter, Ignored, Kind},
    },
    http::{
        auth,
        body::{self, is_json},
        idempotency::key_of,
        prelude::*,
        rate::RateKey,
    },
    store::trigger::OpenTrigger,
    trigger::{self, Inherited, Opening},
    webhook::{Secret, is_signed, verify_github},
    wire::{ErrorType, trigger::TriggerAnswer},
};

/// Session requested by a verified message.
struct Invocation {
    input: Input,
    source: Source,
    /// Sender's name as stated in the message.
    display: Option<String>,
    /// Metadata to add to the trigger's own.
    facts: Option<Value>,
    /// Repository that the message refers to.
    sources: Vec<Repository>,
}

/// Send a message to a trigger
///
/// Starts a session of the trigger's agent.
#[utoipa::path(post, path = "/hooks/{trigger_id}", tag = "triggers", operation_id = "receiveTrigger", security(()),
    params(("trigger_id" = TriggerId, Path),
        ("webhook-id" = Option<String>, Header, description = "Kind `generic`: Standard Webhooks, as the next two."),
        ("webhook-timestamp" = Option<String>, Header), ("webhook-signature" = Option<String>, Header),
        ("X-Hub-Signature-256" = Option<String>, Header, description = "Kind `github`, as the next two."),
        ("X-GitHub-Event" = Option<String>, Header), ("X-GitHub-Delivery" = Option<String>, Header)),
    request_body(content = Map<String, Value>, content_type = "application/json"),
    responses((status = 202, body = TriggerAnswer, description = "A session was started."),
        (status = 200, body = TriggerAnswer, description = "Ignored, or a repeated message."), Errors))]
pub(super) async fn receive(
    State(app): State<App>,
    Path(id): Path<TriggerId>,
    Message { parts, body }: Message,
) -> Result<Answer> {
    let known = sha256(id.uuid().as_bytes());
    let peer = auth::peer(&parts);
    let open = app.0.lookups.find(peer, known, app.0.store.find_trigger(id)).await?;
    let is_known = open.is_some();
    let OpenTrigger { org, trigger, .. } = match authenticate(&app, open, &parts.headers, &body) {
        Ok(open) => open,
        Err(error) => {
            // The answer must not tell a trigger from an unknown one, which was counted.
            if is_known {
                app.0.lookups.unproven(peer)?;
            }
            return Err(error);
        }
    };
    app.take_request(RateKey::Trigger(id), org, &parts)?;
    if !is_json(&parts.headers) {
        return Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/json"));
    }
    let (invocation, keys) = match trigger.kind {
        Kind::Generic => (generic(&body)?, vec![header(&parts.headers, "webhook-id")]),
        Kind::Github => {
            let filter = trigger.filter.clone().unwrap_or_default();
            // The signature only covers the body: the same body under another delivery id is a repetition.
            let keys = vec![header(&parts.headers, "x-github-delivery"), hex(&sha256(&body))];
            (github(&filter, header(&parts.headers, "x-github-event"), &body)?, keys)
        }
    };
    let invocation = match invocation {
        Ok(invocation) => invocation,
        Err(ignored) => {
            let answer = TriggerAnswer { session_id: None, ignored: Some(ignored) };
            return Ok(Answer::new(StatusCode::OK, &answer));
        }
    };
    let own = parts.headers.get("idempotency-key").map(key_of).transpose()?;
    let keys = keys.into_iter().filter(|key| !key.is_empty()).chain(own);
    let keys = keys.map(|key| format!("hook/{id}/{key}"));
    let once = IdempotentRequest::of(keys.collect(), format!("POST /v3/hooks/{id}"), &body);
    let mut answer = once
        .run(&app, org, async |unit: &mut Unit| {
            let actor =
                Actor { id: Some(id.to_string()), display: invocation.display, kind: ActorKind::Trigger };
            let stamp = Stamp { actor, origin: app.0.journal.origin().clone() };
            let mut session_template = trigger.session_template;
            session_template.metadata.extend(invocation.facts.map(|facts| ("github".to_owned(), facts)));
            let opening = Opening {
                agent: trigger.agent,
                session_template,
                inherited: Inherited::default(),
                sources: invocation.sources,
                input: invocation.input,
                source: invocation.source,
                scripted: app.0.scripted,
                parent: None,
            };
            let opened = trigger::open(unit, opening, &stamp).await?;
            let answer = TriggerAnswer { session_id: Some(opened.id), ignored: None };
            Ok(Answer::new(StatusCode::ACCEPTED, &answer))
        })
        .await?;
    if answer.replayed {
        answer.status = StatusCode::OK;
    }
    Ok(answer)
}

/// A request with its complete body, as the sender signed it.
pub(super) struct Message {
    parts: Parts,
    body: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for Message {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let body = body::bytes(Request::new(body), state).await?;
        Ok(Self { parts, body })
    }
}

/// Returns the trigger if it is active and the message is genuine. Every other case gets the same
/// response.
fn authenticate(
    app: &App,
    open: Option<OpenTrigger>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<OpenTrigger> {
    let secrets: Vec<Secret> = match &open {
        Some(open) => {
            open.secrets.iter().filter_map(|secret| Secret::parse(secret.expose_secret()).ok()).collect()
        }
        // Does the same work, so that the response time reveals nothing.
        None => vec![Secret::generate(app.0.journal.origin())],
    };
    let kind = open.as_ref().map_or(Kind::Generic, |open| open.trigger.kind);
    let is_genuine = match kind {
        Kind::Github => verify_github(&secrets, body, &header(headers, "x-hub-signature-256")),
        Kind::Generic => {
            let at = header(headers, "webhook-timestamp").parse::<i64>();
            let now = app.0.journal.origin().now().unix_timestamp();
            let is_recent =
                at.as_ref().is_ok_and(|at| now.abs_diff(*at) <= WEBHOOK_TOLERANCE_SECONDS.unsigned_abs());
            let id = header(headers, "webhook-id");
            let signatures = header(headers, "webhook-signature");
            let is_signed = is_signed(&secrets, &id, at.unwrap_or_default(), body, &signatures);
            is_signed && is_recent && !id.is_empty()
        }
    };
    open.filter(|open| is_genuine && open.is_live).ok_or_else(ApiError::not_found)
}

/// Uses the object as the input, like the creation of a session does.
fn generic(body: &[u8]) -> Result<Result<Invocation, Ignored>> {
    let input = object(body)?;
    if body.len() > TEXT_BYTES_MAX {
        let message = format!("an input may have at most {TEXT_BYTES_MAX} bytes");
        return Err(ApiError::new(ErrorType::Invalid, message));
    }
    if !input.get("text").is_none_or(Value::is_string) {
        return Err(ApiError::invalid("text", "`text` must be a string"));
    }
    let input = Input::of(Value::Object(input));
    Ok(Ok(Invocation { input, source: Source::Trigger, display: None, facts: None, sources: Vec::new() }))
}

fn github(filter: &Filter, event: String, body: &[u8]) -> Result<Result<Invocation, Ignored>> {
    if event == "ping" {
        return Ok(Err(Ignored::Ping));
    }
    let Some(event) = Event::named(&event) else { return Ok(Err(Ignored::Event)) };
    let payload = Value::Object(object(body)?);
    let Some(happening) = GithubActivity::read(event, &payload) else {
        return Err(ApiError::new(ErrorType::Invalid, "the body is not a payload of this event"));
    };
    Ok(filter.check(&happening).map(|source| {
        let (text, facts) = (happening.text(), happening.facts());
        let object = json!({ "text": text, "github": facts });
        let input = Input { text, object: Some(object), ..Input::default() };
        let sources = filter.source.iter().map(|checkout| checkout.source(&happening)).collect();
        Invocation { input, source, display: Some(happening.sender), facts: Some(facts), sources }
    }))
}

fn object(body: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::new(ErrorType::Invalid, format!("the body must be a JSON object: {error}"))
    })
}

/// Returns a header's text; empty if the header is absent, too long, or not text.
fn header(headers: &HeaderMap, name: &str) -> String {
    let text = headers.get(name).and_then(|value| value.to_str().ok());
    let bytes_max = if name.ends_with("signature") { METADATA_BYTES_MAX } else { IDEMPOTENCY_KEY_BYTES_MAX };
    text.filter(|text| text.len() <= bytes_max).unwrap_or_default().to_owned()
}
