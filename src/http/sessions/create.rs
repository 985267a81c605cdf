//! Session creation.
//!
//! Everything that can be rejected is rejected before the session exists.

use std::sync::Arc;

use futures::FutureExt;
use serde_json::{Value, json};
use tracing::Instrument;

use super::{content, context::validate};
use crate::{
    base::limit::{CLIENT_TOKEN_TTL_SECONDS, DESTINATIONS_MAX},
    domain::{
        Actor, InvokeTokenId, Level, OrgId, SessionId, Status,
        content::Content,
        context::Context,
        decide::{Input, NewSession, Stamp},
        session::{Created, Limits, Pins, Source},
        source::{PinnedSource, SourceStatus},
    },
    http::{
        agents::{
            check_fallbacks, check_mcp_servers, check_output_schema, check_rules, check_tools, in_order,
        },
        path,
        prelude::*,
        scope::{ReadSessions, Scope as _, WriteSessions},
        sessions::{sources, tokens},
        skills,
        webhooks::destinations,
    },
    journal::{AgentCache, Decide, Request},
    store::{
        agent::{Agent, Revision},
        audit::Act,
        creation::Creation,
        idempotency::{Slot, SlotState},
        token::NewToken,
    },
    stream::view,
    trigger::{self, Choice},
    wire::{
        client_token::ClientScope,
        session::{CreateSession, CreatedSession, RevisionChoice, SessionView},
        source::SourceView,
        webhook::CreateDestination,
    },
};

/// Create a session
///
/// With input, its first turn is queued immediately.
#[utoipa::path(post, path = "/sessions", tag = "sessions", operation_id = "createSession",
    params(("X-Sojourn-Client" = Option<String>, Header,
        description = "`cli` or `dashboard`: becomes the `source` of the session in place of `api`.")),
    request_body = CreateSession,
    responses((status = 201, body = CreatedSession),
        (status = 200, body = CreatedSession, description = "The session of this `key` or `Idempotency-Key`."),
        Errors))]
pub(crate) async fn create(
    caller: Caller<WriteSessions>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateSession>>,
) -> Result<Answer> {
    let Caller { app, org, actor, source, scopes, .. } = caller;
    let reads = ReadSessions::is_in(&scopes);
    run(Creator { app, org, actor, source, reads, invoke_token: None }, wanted, once).await
}

/// The caller that a session is created for.
pub(crate) struct Creator {
    pub app: App,
    pub org: OrgId,
    pub actor: Actor,
    pub source: Source,
    /// Whether the client token of the session may read it.
    pub reads: bool,
    /// The token that the caller authenticated with; its use is audited.
    pub invoke_token: Option<InvokeTokenId>,
}

/// Creates a session, or returns the one that an equal request created.
pub(crate) async fn run(creator: Creator, wanted: CreateSession, once: IdempotentRequest) -> Result<Answer> {
    if content::has_new_files(&wanted.content)
        && let Some(answer) = once.replay(&creator.app, creator.org).await?
    {
        return with_token(&creator, answer).await;
    }
    let parts = content::store(&creator.app, creator.org, &wanted.content).await?;
    let request = Arc::new(CreateRequest { creator, wanted, parts });
    let answer = match create_batched(&request, &once).await? {
        Some(answer) => answer,
        None => create_unbatched(&request, &once).await?,
    };
    with_token(&request.creator, answer).await
}

/// Adds a new token to the response of a session that existed before: its first one is not stored.
async fn with_token(creator: &Creator, mut answer: Answer) -> Result<Answer> {
    if answer.replayed {
        answer.status = StatusCode::OK;
    }
    if answer.shown_once.is_none() {
        let session = answer.body["session"]["id"].as_str().unwrap_or_default();
        let token = new_token_for_existing(creator, path::id(session)?).await?;
        answer.shown_once = Some(("client_token", token));
    }
    Ok(answer)
}

/// A request to create a session, with its caller.
struct CreateRequest {
    /// Parts of the input, whose files are stored.
    parts: Vec<Content>,
    creator: Creator,
    wanted: CreateSession,
}

/// Creates a session in a transaction shared with concurrent requests. Returns `None` if the request
/// needs its own transaction or its session already exists.
async fn create_batched(request: &Arc<CreateRequest>, once: &IdempotentRequest) -> Result<Option<Answer>> {
    let (wanted, org) = (&request.wanted, request.creator.org);
    // Unique names and the place below a parent session are decided under locks, and
    // destinations must exist before the first events. An invocation has an audit record, which a
    // dropped entry of a batch would leave behind, and a path, whose other agent needs another key.
    let is_apart = wanted.key.is_some()
        || wanted.slug.is_some()
        || wanted.parent_session_id.is_some()
        || request.creator.source == Source::Invoke
        || !request.parts.is_empty()
        || !destinations_of(wanted).is_empty();
    if is_apart {
        return Ok(None);
    }
    let (shared, span) = (request.clone(), tracing::Span::current());
    let decide: Box<Decide<_, _>> = Box::new(|unit, agents| {
        async move { decide_new(&shared, unit, agents).await }.instrument(span).boxed()
    });
    request.creator.app.0.creations.create(org, Request { slot: once.slots().next(), decide }).await
}

/// Creates a session in its own transaction, or returns the one that was created before.
async fn create_unbatched(request: &CreateRequest, once: &IdempotentRequest) -> Result<Answer> {
    let creator = &request.creator;
    let work = async |unit: &mut Unit| {
        let answer = match &request.wanted.key {
            Some(key) => create_by_key(request, unit, key, once.digest()).await?,
            None => create_new(request, unit).await?,
        };
        if let Some(token) = creator.invoke_token {
            record_use(creator, unit, token, &answer).await?;
        }
        Ok(answer)
    };
    once.run(&creator.app, creator.org, work).await
}

/// Creates at most one session per `key`: the same body returns the existing session, a different body is
/// a conflict.
async fn create_by_key(
    request: &CreateRequest,
    unit: &mut Unit,
    key: &str,
    digest: [u8; 32],
) -> Result<Answer> {
    let app = &request.creator.app;
    let slot = Slot { scope: "session".to_owned(), key: key.to_owned(), fingerprint: digest, earlier: None };
    let conflict = || ApiError {
        param: Some("key".to_owned()),
        ..ApiError::conflict(
            "key_taken",
            "another session was created with this key; steer it or use a new key",
        )
    };
    match unit.tx().claim_slot(slot, app.0.store.master()).await? {
        SlotState::Fresh(claimed) => {
            // The slot lives as long as the session; this check is a safeguard.
            if unit.tx().session_by_key(key).await?.is_some() {
                return Err(conflict());
            }
            let answer = create_new(request, unit).await?;
            let id = answer.body["session"]["id"].to_string();
            let status = StatusCode::CREATED.as_u16();
            unit.tx().answer(claimed, status, id.as_bytes(), app.0.journal.origin()).await?;
            Ok(answer)
        }
        SlotState::Replay { .. } => {
            let session = unit.tx().session_by_key(key).await?.ok_or_else(ApiError::not_found)?;
            let session = view(unit.tx(), session).await?;
            Ok(Answer::new(StatusCode::OK, &json!({ "session": session })))
        }
        SlotState::Mismatch => Err(conflict()),
    }
}

async fn create_new(request: &CreateRequest, unit: &mut Unit) -> Result<Answer> {
    let destinations = destinations_of(&request.wanted);
    if destinations.len() > DESTINATIONS_MAX {
        let message = format!("a session has at most {DESTINATIONS_MAX} destinations");
        return Err(ApiError::invalid("destinations", message));
    }
    let (creation, mut answer) = decide_new(request, unit, &mut AgentCache::default()).await?;
    if destinations.is_empty() {
        let id = creation.session.id;
        unit.create(creation).await?;
        content::use_files(unit, id, &request.parts).await?;
        return Ok(answer);
    }
    // Destinations are stored before the first events are appended, so that these are delivered.
    let creation = unit.create_row(creation).await?;
    content::use_files(unit, creation.session.id, &request.parts).await?;
    let mut views = Vec::with_capacity(destinations.len());
    for destination in destinations {
        views.push(
            destinations::store(&request.creator.app, unit, creation.session.id, 0, destination).await?,
        );
    }
    answer.body["destinations"] = serde_json::to_value(&views).expect("response types serialize to JSON");
    unit.begin_log(creation).await?;
    Ok(answer)
}

/// Decides a new session, and its response without destinations.
async fn decide_new(
    request: &CreateRequest,
    unit: &mut Unit,
    agents: &mut AgentCache,
) -> Result<(Creation, Answer)> {
    let CreateRequest { creator, wanted, parts } = request;
    let app = &creator.app;
    let wanted = wanted.clone();
    sources::check_local(app, "sources", &wanted.sources)?;
    sources::check_choice(app, wanted.environment.as_ref())?;
    let (mut of_agent, mut environment) = (Vec::new(), wanted.environment);
    let input = match wanted.input.map(Input::of) {
        None if parts.is_empty() => None,
        input => {
            let mut input = input.unwrap_or_default();
            let own = Some(input.text).filter(|text| !text.is_empty());
            let (text, content) = content::join(own, parts.clone())?;
            (input.text, input.content) = (text.unwrap_or_default(), content);
            Some(input)
        }
    };
    let mut created = Created {
        agent_id: None,
        credential_id: None,
        agent_snapshot: None,
        environment: None,
        sources: Vec::new(),
        title: wanted.title,
        key: wanted.key,
        client_id: wanted.client_id,
        slug: wanted.slug,
        metadata: wanted.metadata,
        limits: wanted.limits.over(Limits::default()),
        source: creator.source,
        parent_session_id: None,
    };
    if let Some((agent, pins)) = pinned(app, unit, agents, &request.wanted).await? {
        created.limits = wanted.limits.over(agent.limits);
        of_agent = agent.sources;
        environment = environment.or(agent.revision.environment);
        created.pin(pins);
    }
    if let Some(choice) = environment {
        created.environment = Some(trigger::environment(unit, choice, app.0.journal.origin()).await?);
    }
    trigger::pin_sources(unit, &mut created, &[&of_agent, &wanted.sources]).await?;
    let sources = pending(&created.sources);
    let parent = match &wanted.parent_session_id {
        Some(named) => {
            Some(path::resolve_in(unit.tx(), named).await?.ok_or(trigger::Refused::UnknownParent)?)
        }
        None => None,
    };
    trigger::adopt(unit, &mut created, parent).await?;
    let context = validate(wanted.context, Context::default())?;
    let id: SessionId = app.0.journal.origin().id();
    let stamp = Stamp { actor: creator.actor.clone(), origin: app.0.journal.origin().clone() };
    let (token, shown) = new_token(creator);
    let creation = unit.decide_session(id, NewSession { created, context, input }, &stamp)?;
    let mut body = json!({ "session": SessionView::from(creation.session.clone()) });
    if !sources.is_empty() {
        body["sources"] = serde_json::to_value(&sources).expect("response types serialize to JSON");
    }
    let answer =
        Answer { shown_once: Some(("client_token", shown)), ..Answer::new(StatusCode::CREATED, &body) };
    Ok((Creation { token: Some(token), ..creation }, answer))
}

/// Returns the agent of a new session, at the revision that it runs, and what it pins of it; `None` without an agent.
async fn pinned(
    app: &App,
    unit: &mut Unit,
    agents: &mut AgentCache,
    wanted: &CreateSession,
) -> Result<Option<(Agent, Pins)>> {
    let Some(agent) = &wanted.agent else {
        let needs_agent = wanted.input.is_some()
            || !wanted.content.is_empty()
            || wanted.model.is_some()
            || wanted.tools.is_some()
            || !wanted.permissions.is_empty()
            || !wanted.settings().is_default()
            || wanted.revision.is_some();
        let message = "`input`, `content`, `model`, `tools`, `permissions`, `ask`, `doom_loop`, `output_schema`, `output_repairs`, \
             `compaction`, `mcp_servers`, `fallback_models`, `skills` and `revision` need an agent";
        return if needs_agent { Err(ApiError::invalid("agent", message)) } else { Ok(None) };
    };
    let unknown = || ApiError { param: Some("agent".to_owned()), ..ApiError::not_found() };
    let agent = agents.find(unit, agent).await?.ok_or_else(unknown)?;
    let revision = find_revision(unit, &agent, wanted.revision.as_ref()).await?;
    let agent = Agent { revision: revision.clone(), ..agent };
    let tools = wanted.tools.clone().map(in_order);
    check_tools(tools.as_deref().unwrap_or_default()).await?;
    check_rules(&wanted.permissions)?;
    check_output_schema(wanted.output_schema.as_ref()).await?;
    check_fallbacks(app, wanted.fallback_models.as_deref())?;
    skills::check_choices(wanted.skills.as_deref())?;
    check_mcp_servers(app, unit, wanted.mcp_servers.as_deref()).await?;
    let (model, permissions) = (wanted.model.clone(), wanted.permissions.clone());
    let settings = wanted.settings();
    let (own, scripted) = (agent.clone(), app.0.scripted);
    let choice = Choice { agent: own, revision, model, tools, permissions, settings, scripted };
    let pins = trigger::pins(unit, choice).await?;
    let pinned = &pins.agent_snapshot;
    trigger::check_fallback_credentials(unit, &pinned.model, &pinned.settings).await?;
    Ok(Some((agent, pins)))
}

/// Records that a session was created with an invoke token.
async fn record_use(creator: &Creator, unit: &mut Unit, token: InvokeTokenId, answer: &Answer) -> Result<()> {
    let session = &answer.body["session"];
    let act = Act {
        id: creator.app.0.journal.origin().id(),
        actor: &creator.actor,
        action: "invoke_token.used",
        target: Some(token.to_string()),
        details: json!({ "agent_id": session["agent_id"], "session_id": session["id"] }),
    };
    Ok(unit.tx().record_audit(&act).await?)
}

/// Builds the views of sources before they are cloned.
fn pending(sources: &[PinnedSource]) -> Vec<SourceView> {
    sources.iter().map(|source| SourceView::new(source.clone(), SourceStatus::default())).collect()
}

fn destinations_of(wanted: &CreateSession) -> Vec<CreateDestination> {
    let short = wanted.webhook.clone().map(|url| CreateDestination {
        url,
        secret: None,
        level: None,
        types: None,
        include_raw: false,
        enabled: None,
    });
    short.into_iter().chain(wanted.destinations.iter().cloned()).collect()
}

async fn find_revision(unit: &mut Unit, agent: &Agent, wanted: Option<&RevisionChoice>) -> Result<Revision> {
    let revision = match wanted {
        None => return Ok(agent.revision.clone()),
        Some(RevisionChoice::Number(number)) => unit.tx().revision_by_number(agent.id, *number).await,
        Some(RevisionChoice::Id(id)) => match id.parse() {
            Ok(id) => unit.tx().revision(id).await,
            Err(_) => Err(crate::store::Error::NotFound),
        },
    };
    match revision {
        Ok(revision) if revision.agent == agent.id => Ok(revision),
        Ok(_) | Err(crate::store::Error::NotFound) => {
            Err(ApiError::invalid("revision", "the agent has no such revision"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates a new token for an existing session, or returns null if it is archived.
async fn new_token_for_existing(creator: &Creator, session: SessionId) -> Result<Value> {
    let mut tx = creator.app.0.store.begin(creator.org).await?;
    // The lock prevents a token that outlives the session's archiving, which revokes all tokens.
    if tx.lock_session(session).await?.status == Status::Archived {
        return Ok(Value::Null);
    }
    let (token, shown) = new_token(creator);
    tx.create_token(session, &token).await?;
    tx.commit().await?;
    Ok(shown)
}

/// Creates the token that is returned with a new session, and its JSON form.
fn new_token(creator: &Creator) -> (NewToken, Value) {
    let scopes: &[_] =
        if creator.reads { &[ClientScope::Read, ClientScope::Steer] } else { &[ClientScope::Steer] };
    let (token, view) = tokens::make(&creator.app, scopes, CLIENT_TOKEN_TTL_SECONDS.1, Level::Progress);
    (token, Value::String(view.token))
}
