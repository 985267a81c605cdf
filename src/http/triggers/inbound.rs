//! Inbound messages to a trigger, authenticated by a signature with the trigger's secret.
//!
//! An unknown trigger, a disabled one, one of a suspended organization and a wrong signature get the same
//! response, after the same work and the same time, and count the same. The message is interpreted only after these
//! checks, and its content never determines the recorded origin of the session.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, request::Parts},
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

use crate::{
    base::{
        ExposeSecret,
        limit::{
            IDEMPOTENCY_KEY_BYTES_MAX, METADATA_BYTES_MAX, TEXT_BYTES_MAX, TRIGGER_REFUSED_AFTER,
            WEBHOOK_TOLERANCE_SECONDS,
        },
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
        body::{self, check_values, is_json},
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
    let peer = auth::peer(&parts);
    let refused_at = Instant::now() + TRIGGER_REFUSED_AFTER;
    let found = app.0.lookups.find_trigger(peer, app.0.store.find_trigger(id)).await?;
    let Some(OpenTrigger { org, trigger, .. }) = authenticate(&app, found, &parts.headers, &body) else {
        // Counted only now: a sender with a valid signature is not refused because of others at its address.
        let refused = app.0.lookups.unproven(peer).err().unwrap_or_else(ApiError::not_found);
        drop(body);
        sleep_until(refused_at).await;
        return Err(refused);
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

/// Secrets that a message is verified with: a trigger has two after a rotation.
const SECRETS: usize = 2;

/// Returns the trigger if it is active and the message is genuine.
///
/// The work depends on the message alone, whether the trigger exists or not: its signature of each kind is verified
/// with as many secrets as a trigger can have.
fn authenticate(
    app: &App,
    found: Option<OpenTrigger>,
    headers: &HeaderMap,
    body: &[u8],
) -> Option<OpenTrigger> {
    let origin = app.0.journal.origin();
    let stored = found.iter().flat_map(|open| &open.secrets);
    let stored = stored.filter_map(|secret| Secret::parse(secret.expose_secret()).ok());
    // Nobody can sign with these.
    let unknown: [Secret; SECRETS] = std::array::from_fn(|_| Secret::generate(origin));
    let secrets: Vec<Secret> = stored.chain(unknown).take(SECRETS).collect();
    let is_of_github = is_from_github(&secrets, headers, body);
    let is_generic = is_from_sender(&secrets, headers, body, origin.now().unix_timestamp());
    let is_genuine = |kind| match kind {
        Kind::Github => is_of_github,
        Kind::Generic => is_generic,
    };
    found.filter(|open| is_genuine(open.trigger.kind) && open.is_live)
}

/// Returns whether a message has a valid signature of the kind `github`.
fn is_from_github(secrets: &[Secret], headers: &HeaderMap, body: &[u8]) -> bool {
    let signature = header(headers, "x-hub-signature-256");
    !signature.is_empty() && verify_github(secrets, body, &signature)
}

/// Returns whether a message has a valid signature of the kind `generic`. `now` is in seconds since 1970.
fn is_from_sender(secrets: &[Secret], headers: &HeaderMap, body: &[u8], now: i64) -> bool {
    let signatures = header(headers, "webhook-signature");
    let id = header(headers, "webhook-id");
    let Ok(at) = header(headers, "webhook-timestamp").parse::<i64>() else { return false };
    let is_recent = now.abs_diff(at) <= WEBHOOK_TOLERANCE_SECONDS.unsigned_abs();
    !signatures.is_empty() && !id.is_empty() && is_recent && is_signed(secrets, &id, at, body, &signatures)
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
    check_values(body)?;
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
