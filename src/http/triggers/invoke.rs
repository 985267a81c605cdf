//! An agent's invoke URL: sessions started with an API key or with a token of that agent alone.
//!
//! A token is not cached, so a revocation takes effect with its commit, in every process.

use axum::{extract::FromRequestParts, http::request::Parts};
use serde_json::json;

use crate::{
    base::{key, limit::INVOKE_TOKENS_MAX},
    domain::{
        Actor, ActorKind, AgentId, InvokeTokenId,
        schedule::SessionTemplate,
        session::{Limits, Source},
    },
    http::{
        auth,
        path::CallerOrg,
        prelude::*,
        rate::RateKey,
        scope::{ReadSessions, ReadTriggers, Scope as _, WriteSessions, WriteTriggers},
        sessions::{
            create::{self, Creator},
            sources,
        },
        unauthenticated::Peer,
    },
    store::invoke_token::{InvokeToken, LiveInvokeToken},
    wire::{
        invoke::{CreateInvokeToken, InvokeAgent, InvokeTokenView},
        session::{CreateSession, CreatedSession},
    },
};

/// A caller that may start sessions of the agent in the path.
///
/// It has an API key with the scope `sessions:write`, or a token of this agent. A token of another agent
/// gets the response of an unknown agent.
pub(super) struct Invoker {
    agent: AgentId,
    creator: Creator,
    /// Settings of the token for its sessions; empty for an API key.
    template: SessionTemplate,
}

impl FromRequestParts<App> for Invoker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let secret =
            auth::bearer(&parts.headers).filter(|secret| secret.starts_with(key::INVOKE_TOKEN_PREFIX));
        let Some(secret) = secret else {
            let caller = Caller::<WriteSessions>::from_request_parts(parts, app).await?;
            let Caller { app, org, actor, scopes, .. } = caller;
            let creator = Creator {
                app: app.clone(),
                org,
                actor,
                source: Source::Invoke,
                reads: ReadSessions::is_in(&scopes),
                invoke_token: None,
            };
            let agent = agent_in(parts, &app).await?;
            return Ok(Self { agent, creator, template: SessionTemplate::default() });
        };
        let LiveInvokeToken { org, token, .. } = open(app, &secret, auth::peer(parts)).await?;
        app.take_request(RateKey::InvokeToken(token.id), org, parts)?;
        parts.extensions.insert(CallerOrg(org));
        let agent = agent_in(parts, app).await?;
        if agent != token.agent {
            return Err(ApiError::not_found());
        }
        let actor =
            Actor { id: Some(token.id.to_string()), display: Some(token.name), kind: ActorKind::Human };
        let invoke_token = Some(token.id);
        let creator =
            Creator { app: app.clone(), org, actor, source: Source::Invoke, reads: true, invoke_token };
        Ok(Self { agent, creator, template: token.session_template })
    }
}

/// Returns the token with this secret, if it is valid and its organization is not suspended.
async fn open(app: &App, secret: &str, peer: Option<Peer>) -> Result<LiveInvokeToken> {
    match app.find_secret(secret, peer, app.0.store.find_invoke_token(secret)).await? {
        Some(live) if live.is_suspended => Err(auth::suspended()),
        found => found.ok_or_else(auth::wrong_key),
    }
}

async fn agent_in(parts: &mut Parts, app: &App) -> Result<AgentId> {
    Ok(Path::from_request_parts(parts, app).await?.0)
}

/// Start a session of an agent
///
/// Accepts an API key, or an invoke token of this agent in `Authorization: Bearer`. The response is that of
/// `POST /v3/sessions`.
#[utoipa::path(post, path = "/agents/{agent_id}/invoke", tag = "agents", operation_id = "invokeAgent",
    params(("agent_id" = AgentId, Path)), request_body = InvokeAgent,
    responses((status = 201, body = CreatedSession), Errors))]
pub(super) async fn invoke(
    Invoker { agent, creator, template }: Invoker,
    Idempotent(once, Body(wanted)): Idempotent<Body<InvokeAgent>>,
) -> Result<Answer> {
    // A token must not receive the response of another caller, so its keys are its own.
    let once = match creator.invoke_token {
        Some(token) => once.below(&format!("invoke/{token}")),
        None => once,
    };
    let mut metadata = wanted.metadata;
    metadata.extend(template.metadata);
    let session = CreateSession {
        agent: Some(agent.to_string()),
        input: Some(wanted.input),
        title: wanted.title.or(template.title),
        metadata,
        limits: template.limits.into(),
        environment: template.environment,
        ..CreateSession::default()
    };
    create::run(creator, session, once).await
}

/// Create an invoke token
///
/// Whoever has the token can start sessions of the agent at `path`. It is shown once.
#[utoipa::path(post, path = "/agents/{agent_id}/invoke-tokens", tag = "agents", operation_id = "createInvokeToken",
    params(("agent_id" = AgentId, Path)), request_body = CreateInvokeToken,
    responses((status = 201, body = InvokeTokenView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteTriggers>,
    Path(agent): Path<AgentId>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateInvokeToken>>,
) -> Result<Answer> {
    let app = &caller.app;
    once.run(app, caller.org, async |unit: &mut Unit| {
        // The lock prevents adding a token to an agent that is being deleted.
        unit.tx().lock_agent(agent).await?;
        if unit.tx().invoke_tokens(agent).await?.len() as i64 >= INVOKE_TOKENS_MAX {
            let message = format!("an agent has at most {INVOKE_TOKENS_MAX} invoke tokens");
            return Err(ApiError::conflict("too_many_invoke_tokens", message));
        }
        let origin = caller.origin();
        sources::check_stored_choice(app, unit, wanted.environment.as_ref()).await?;
        let secret = key::generate_invoke_token(origin);
        let token = InvokeToken {
            id: origin.id(),
            agent,
            name: wanted.name,
            hint: key::hint(&secret),
            session_template: SessionTemplate {
                title: wanted.title,
                metadata: wanted.metadata,
                limits: wanted.limits.over(Limits::default()),
                environment: wanted.environment,
            },
            last_used_at: None,
            created_at: origin.now(),
        };
        unit.tx().insert_invoke_token(&token, &app.0.store.master().fingerprint(&secret)).await?;
        let details = json!({ "agent_id": agent, "name": token.name });
        caller.record_audit(unit.tx(), "invoke_token.created", token.id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &InvokeTokenView { token: Some(secret), ..view(token) }))
    })
    .await
}

/// List an agent's invoke tokens
///
/// Newest first, without the tokens themselves.
#[utoipa::path(get, path = "/agents/{agent_id}/invoke-tokens", tag = "agents", operation_id = "listInvokeTokens",
    params(("agent_id" = AgentId, Path)), responses((status = 200, body = Page<InvokeTokenView>), Errors))]
pub(super) async fn list(caller: Caller<ReadTriggers>, Path(agent): Path<AgentId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.agent(agent).await?;
    let data = tx.invoke_tokens(agent).await?.into_iter().map(view).collect();
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Revoke an invoke token
///
/// Takes effect at once. Sessions that it started continue.
#[utoipa::path(delete, path = "/agents/{agent_id}/invoke-tokens/{invoke_token_id}", tag = "agents",
    operation_id = "revokeInvokeToken",
    params(("agent_id" = AgentId, Path), ("invoke_token_id" = InvokeTokenId, Path)),
    responses((status = 204), Errors))]
pub(super) async fn revoke(
    caller: Caller<WriteTriggers>,
    Path((agent, token)): Path<(AgentId, InvokeTokenId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let name = tx.delete_invoke_token(agent, token).await?;
    let details = json!({ "agent_id": agent, "name": name });
    caller.record_audit(&mut tx, "invoke_token.revoked", token, details).await?;
    tx.commit().await?;
    Ok(no_content())
}

fn view(token: InvokeToken) -> InvokeTokenView {
    let template = token.session_template;
    InvokeTokenView {
        id: token.id,
        agent_id: token.agent,
        name: token.name,
        hint: token.hint,
        path: format!("/v3/agents/{}/invoke", token.agent),
        token: None,
        title: template.title,
        metadata: template.metadata,
        limits: template.limits,
        environment: template.environment,
        last_used_at: token.last_used_at,
        created_at: token.created_at,
    }
}
