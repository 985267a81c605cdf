//! Agents and their revisions: create (idempotent by name), read, change, delete.

mod credentials;
mod environments;
mod mcp;

use serde_json::{Map, Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    base::{seal::sha256, text::hex},
    domain::{
        AgentId, CredentialId, conversation::ModelOptions, custom_tool::AgentTool, fallback::FallbackModel,
        mcp::McpServer, permission::Rule, session::Limits, turn_settings::TurnSettings,
    },
    http::{
        path,
        prelude::*,
        scope::{ReadAgents, WriteAgents},
        sessions::sources,
        skills,
    },
    permission,
    store::agent::{Agent, Revision},
    tool,
    wire::agent::{AgentView, CreateAgent, PatchAgent, RevisionRef, RevisionView},
};

/// Routes of agents, their credentials and environments.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, patch, delete))
        .routes(routes!(revisions))
        .routes(routes!(activate))
        .routes(routes!(credentials::create, credentials::list))
        .routes(routes!(credentials::get, credentials::rotate, credentials::delete))
        .routes(routes!(credentials::set_default))
        .routes(routes!(environments::create, environments::list))
        .routes(routes!(environments::get, environments::patch, environments::delete))
        .routes(routes!(environments::build))
}

/// The harness of this service.
const BUILTIN_RUNTIME: &str = "builtin";

/// Create an agent
///
/// Returns the existing agent if one with this name has the same configuration.
#[utoipa::path(post, path = "/agents", tag = "agents", operation_id = "createAgent", request_body = CreateAgent,
    responses((status = 201, body = AgentView), (status = 200, body = AgentView, description = "It already exists, or the request repeats an `Idempotency-Key`."), Errors))]
pub(super) async fn create(
    caller: Caller<WriteAgents>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateAgent>>,
) -> Result<Answer> {
    check_config(&caller.app, &wanted.model, &wanted.model_options, wanted.tools.as_deref()).await?;
    check_rules(&wanted.permissions)?;
    check_output_schema(wanted.output_schema.as_ref()).await?;
    check_fallbacks(&caller.app, wanted.fallback_models.as_deref())?;
    skills::check_choices(wanted.skills.as_deref())?;
    mcp::check_addresses(&caller.app, wanted.mcp_servers.as_deref())?;
    if wanted.runtime.as_ref().is_some_and(|runtime| runtime != BUILTIN_RUNTIME) {
        let message =
            format!("`runtime` must be `{BUILTIN_RUNTIME}`, the only one that exists; it is the default");
        return Err(ApiError::invalid("runtime", message));
    }
    credentials::check_choice(wanted.key.is_some(), wanted.credential.is_some())?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        if let Some(existing) = unit.tx().claim_agent_name(&wanted.name).await? {
            return same_or_conflict(&caller.app, unit, existing, &wanted).await;
        }
        sources::check(&caller.app, unit, &wanted.sources).await?;
        sources::check_stored_choice(&caller.app, unit, wanted.environment.as_ref()).await?;
        mcp::check_credentials(unit, wanted.mcp_servers.as_deref()).await?;
        skills::check_agent(unit, wanted.skills.as_deref(), wanted.tools.as_deref()).await?;
        let credential = match &wanted.key {
            Some(key) => Some(own_key(&caller, unit, (&wanted.model, key)).await?),
            None => credentials::existing(unit, wanted.credential.as_deref()).await?,
        };
        let origin = caller.origin();
        let now = origin.now();
        let settings = wanted.settings();
        let id: AgentId = origin.id();
        let mut revision = Revision {
            id: origin.id(),
            agent: id,
            number: 1,
            prompt: wanted.prompt,
            model: wanted.model,
            model_options: wanted.model_options,
            runtime: wanted.runtime.unwrap_or_else(|| BUILTIN_RUNTIME.to_owned()),
            tools: wanted.tools.map(in_order),
            permissions: wanted.permissions,
            settings,
            environment: wanted.environment,
            digest: String::new(),
            created_at: now,
        };
        revision.digest = digest_of(&revision);
        let agent = Agent {
            id,
            name: wanted.name,
            credential,
            limits: wanted.limits.over(Limits::default()),
            enabled: wanted.enabled,
            spend_caps: wanted.spend_caps,
            sources: wanted.sources,
            revision,
            created_at: now,
            updated_at: now,
        };
        unit.tx().insert_agent(&agent).await?;
        let details = json!({ "name": agent.name, "revision": agent.revision.number });
        caller.record_audit(unit.tx(), "agent.created", id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &view(agent)))
    })
    .await
}

/// List agents
///
/// Newest first.
#[utoipa::path(get, path = "/agents", tag = "agents", operation_id = "listAgents", params(PageQuery),
    responses((status = 200, body = Page<AgentView>), Errors))]
pub(super) async fn list(caller: Caller<ReadAgents>, Query(query): Query<PageQuery>) -> Result<Response> {
    let list = caller.list("agents", &()).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    let agents = tx.agents(list.below, list.limit()).await?;
    Ok(respond(&list.page(agents, |agent| agent.id, view)))
}

/// Get an agent
#[utoipa::path(get, path = "/agents/{agent_id}", tag = "agents", operation_id = "getAgent",
    params(("agent_id" = AgentId, Path)), responses((status = 200, body = AgentView), Errors))]
pub(super) async fn get(caller: Caller<ReadAgents>, Path(agent): Path<AgentId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.agent(agent).await?)))
}

/// Change an agent
///
/// A change of anything but the credential, the limits, the caps, `enabled` and `sources` creates a new revision.
#[utoipa::path(patch, path = "/agents/{agent_id}", tag = "agents", operation_id = "updateAgent",
    params(("agent_id" = AgentId, Path)), request_body = PatchAgent,
    responses((status = 200, body = AgentView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteAgents>,
    Path(id): Path<AgentId>,
    Body(change): Body<PatchAgent>,
) -> Result<Response> {
    credentials::check_choice(change.key.is_some(), change.credential.as_ref().is_some_and(Option::is_some))?;
    let mut unit = caller.unit().await?;
    let mut agent = unit.tx().lock_agent(id).await?;
    check_mcp_servers(&caller.app, &mut unit, change.mcp_servers.as_ref().and_then(Option::as_deref)).await?;
    sources::check_stored_choice(
        &caller.app,
        &mut unit,
        change.environment.as_ref().and_then(Option::as_ref),
    )
    .await?;
    let revision = changed(&caller.app, &agent.revision, &change).await?;
    if change.skills.is_some() || change.tools.is_some() {
        let skills = revision.settings.skills.as_deref();
        skills::check_agent(&mut unit, skills, revision.tools.as_deref()).await?;
    }
    if let Some(key) = &change.key {
        agent.credential = Some(own_key(&caller, &mut unit, (&revision.model, key)).await?);
    } else if let Some(credential) = &change.credential {
        agent.credential = credentials::existing(&mut unit, credential.as_deref()).await?;
    }
    if revision.digest != agent.revision.digest {
        let latest = unit.tx().revisions(id, None, 1).await?;
        let number = latest.first().map_or(1, |latest| latest.number + 1);
        agent.revision = Revision { number, ..revision };
        unit.tx().insert_revision(&agent.revision).await?;
    }
    if let Some(limits) = change.limits {
        agent.limits = limits.over(agent.limits);
    }
    agent.enabled = change.enabled.unwrap_or(agent.enabled);
    agent.spend_caps = change.spend_caps.unwrap_or(agent.spend_caps);
    if let Some(changed) = change.sources {
        sources::check(&caller.app, &mut unit, &changed).await?;
        agent.sources = changed;
    }
    agent.updated_at = caller.origin().now();
    unit.tx().update_agent(&agent).await?;
    let details = json!({
        "revision": agent.revision.number, "limits": agent.limits, "enabled": agent.enabled,
        "spend_caps": agent.spend_caps, "credential_id": agent.credential, "sources": agent.sources,
    });
    caller.record_audit(unit.tx(), "agent.updated", id, details).await?;
    unit.commit().await?;
    Ok(respond(&view(agent)))
}

/// Delete an agent with its schedules, triggers and invoke tokens
///
/// Its sessions continue with their pinned revision.
#[utoipa::path(delete, path = "/agents/{agent_id}", tag = "agents", operation_id = "deleteAgent",
    params(("agent_id" = AgentId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(caller: Caller<WriteAgents>, Path(id): Path<AgentId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_agent(id).await?;
    caller.record_audit(&mut tx, "agent.deleted", id, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// List an agent's revisions
///
/// Newest first.
#[utoipa::path(get, path = "/agents/{agent_id}/revisions", tag = "agents", operation_id = "listRevisions",
    params(("agent_id" = AgentId, Path), PageQuery),
    responses((status = 200, body = Page<RevisionView>), Errors))]
pub(super) async fn revisions(
    caller: Caller<ReadAgents>,
    Path(id): Path<AgentId>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    let list = caller.list("revisions", &id).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    let active = tx.agent(id).await?.revision.id;
    let revisions = tx.revisions(id, list.below, list.limit()).await?;
    Ok(respond(&list.page(revisions, |revision| revision.number, |revision| revision_view(revision, active))))
}

/// Activate a revision
///
/// New sessions run the active revision.
#[utoipa::path(post, path = "/agents/{agent_id}/revisions/{revision}/activate", tag = "agents",
    operation_id = "activateRevision",
    params(("agent_id" = AgentId, Path), ("revision" = String, Path, description = "Number or id")),
    responses((status = 200, body = AgentView), Errors))]
pub(super) async fn activate(
    caller: Caller<WriteAgents>,
    Path((agent, revision)): Path<(AgentId, String)>,
    once: IdempotentRequest,
) -> Result<Answer> {
    let id: AgentId = agent;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let mut agent = unit.tx().lock_agent(id).await?;
        agent.revision = match revision.parse::<i32>() {
            Ok(number) => unit.tx().revision_by_number(id, number).await?,
            Err(_) => unit.tx().revision(path::id(&revision)?).await?,
        };
        if agent.revision.agent != id {
            return Err(ApiError::not_found());
        }
        let (skills, tools) = (agent.revision.settings.skills.as_deref(), agent.revision.tools.as_deref());
        skills::check_agent(unit, skills, tools).await?;
        agent.updated_at = caller.origin().now();
        unit.tx().update_agent(&agent).await?;
        let details = json!({ "revision": agent.revision.number });
        caller.record_audit(unit.tx(), "agent.revision_activated", id, details).await?;
        Ok(Answer::new(StatusCode::OK, &view(agent)))
    })
    .await
}

/// Stores an agent's own provider key. The last argument is `(model, key)`; the model determines the
/// provider.
async fn own_key(
    caller: &Caller<WriteAgents>,
    unit: &mut Unit,
    (model, key): (&str, &str),
) -> Result<CredentialId> {
    let credential = credentials::store_for_model(&caller.app, unit, model, key).await?;
    credentials::record_created(caller, unit.tx(), &credential).await?;
    Ok(credential.id)
}

/// Checks that the agent's model and tools exist in this deployment.
async fn check_config(
    app: &App,
    model: &str,
    options: &ModelOptions,
    tools: Option<&[AgentTool]>,
) -> Result<()> {
    app.check_model(model)?;
    check_api(model, options)?;
    check_tools(tools.unwrap_or_default()).await
}

fn check_api(model: &str, options: &ModelOptions) -> Result<()> {
    if options.api.is_some() && ["anthropic/", "scripted/"].iter().any(|own| model.starts_with(own)) {
        let message = "`api` is for models of OpenAI and of providers that are compatible with it";
        return Err(ApiError::invalid("model_options.api", message));
    }
    Ok(())
}

/// Checks a list of fallback models; the error names the place.
pub(super) fn check_fallbacks(app: &App, fallbacks: Option<&[FallbackModel]>) -> Result<()> {
    let fallbacks = fallbacks.unwrap_or_default();
    for (index, fallback) in fallbacks.iter().enumerate() {
        if fallbacks[..index].iter().any(|other| other.model == fallback.model) {
            let message = "the model is in the list twice";
            return Err(ApiError::invalid(format!("fallback_models[{index}].model"), message));
        }
        let checked = app
            .check_model(&fallback.model)
            .and_then(|_| check_api(&fallback.model, &fallback.model_options.clone().unwrap_or_default()));
        checked.map_err(|error| {
            let field = error.param.as_deref().unwrap_or_default();
            ApiError { param: Some(format!("fallback_models[{index}].{field}")), ..error }
        })?;
    }
    Ok(())
}

/// Checks a list of tools; the error names the place.
pub(super) async fn check_tools(tools: &[AgentTool]) -> Result<()> {
    tool::check_tools(tools.to_vec()).await.map_err(|problem| {
        let place = format!("tools[{}]", problem.index);
        let param = problem.field.map(|field| format!("{place}.{field}")).unwrap_or(place);
        let code = problem.is_schema.then_some("invalid_schema".into());
        ApiError { code, ..ApiError::invalid(param, problem.message) }
    })
}

/// Checks a list of permission rules; the error names the place.
pub(super) fn check_rules(rules: &[Rule]) -> Result<()> {
    match permission::problem(rules, &tool::names()) {
        None => Ok(()),
        Some((index, field, words)) => {
            Err(ApiError::invalid(format!("permissions[{index}].{field}"), format!("`{field}` {words}")))
        }
    }
}

/// Checks a list of MCP servers; the error names the place.
pub(super) async fn check_mcp_servers(
    app: &App,
    unit: &mut Unit,
    servers: Option<&[McpServer]>,
) -> Result<()> {
    mcp::check_addresses(app, servers)?;
    mcp::check_credentials(unit, servers).await
}

/// Checks the schema of an output.
pub(super) async fn check_output_schema(schema: Option<&Map<String, Value>>) -> Result<()> {
    let Some(schema) = schema else { return Ok(()) };
    tool::check_output_schema(schema.clone()).await.map_err(|message| ApiError {
        code: Some("invalid_schema".into()),
        ..ApiError::invalid("output_schema", format!("`output_schema` {message}"))
    })
}

/// Puts the tools that callers run behind the others, as they are stored.
pub(super) fn in_order(mut tools: Vec<AgentTool>) -> Vec<AgentTool> {
    tools.sort_by_key(|tool| tool.custom().is_some());
    tools
}

/// Builds the revision that results from a change.
async fn changed(app: &App, revision: &Revision, change: &PatchAgent) -> Result<Revision> {
    let origin = app.0.journal.origin();
    let mut next = Revision { id: origin.id(), created_at: origin.now(), ..revision.clone() };
    if let Some(prompt) = &change.prompt {
        next.prompt.clone_from(prompt);
    }
    if let Some(model) = &change.model {
        next.model.clone_from(model);
    }
    if let Some(options) = &change.model_options {
        next.model_options.clone_from(options);
    }
    if let Some(tools) = &change.tools {
        next.tools = tools.clone().map(in_order);
    }
    if let Some(permissions) = &change.permissions {
        check_rules(permissions)?;
        next.permissions.clone_from(permissions);
    }
    check_output_schema(change.output_schema.as_ref().and_then(Option::as_ref)).await?;
    check_fallbacks(app, change.fallback_models.as_ref().and_then(Option::as_deref))?;
    skills::check_choices(change.skills.as_ref().and_then(Option::as_deref))?;
    if let Some(environment) = &change.environment {
        next.environment.clone_from(environment);
    }
    next.settings = change.settings().applied_to(next.settings, &TurnSettings::default());
    check_config(app, &next.model, &next.model_options, next.tools.as_deref()).await?;
    next.digest = digest_of(&next);
    Ok(next)
}

/// Returns the existing agent if its configuration equals the requested one, else a conflict.
async fn same_or_conflict(
    app: &App,
    unit: &mut Unit,
    existing: Agent,
    wanted: &CreateAgent,
) -> Result<Answer> {
    let revision = &existing.revision;
    let is_same = revision.prompt == wanted.prompt
        && revision.model == wanted.model
        && revision.model_options == wanted.model_options
        && wanted.runtime.as_ref().is_none_or(|runtime| *runtime == revision.runtime)
        && revision.tools == wanted.tools.clone().map(in_order)
        && revision.permissions == wanted.permissions
        && revision.settings == wanted.settings()
        && revision.environment == wanted.environment
        && existing.limits == wanted.limits.over(Limits::default())
        && existing.enabled == wanted.enabled
        && existing.spend_caps == wanted.spend_caps
        && existing.sources == wanted.sources
        && is_same_credential(unit, existing.credential, wanted.credential.as_deref()).await?
        && credentials::is_same_key(app, unit, existing.credential, wanted.key.as_deref()).await?;
    if is_same { Ok(Answer::new(StatusCode::OK, &view(existing))) } else { Err(name_taken()) }
}

/// Whether a repeated create names the credential that the agent already has.
async fn is_same_credential(
    unit: &mut Unit,
    held: Option<CredentialId>,
    wanted: Option<&str>,
) -> Result<bool, ApiError> {
    let Some(wanted) = wanted else { return Ok(true) };
    Ok(path::resolve_in(unit.tx(), wanted).await?.is_some_and(|wanted| held == Some(wanted)))
}

fn name_taken() -> ApiError {
    ApiError {
        param: Some("name".to_owned()),
        ..ApiError::conflict(
            "name_taken",
            "an agent with this name has another configuration; PATCH it instead",
        )
    }
}

fn digest_of(revision: &Revision) -> String {
    let mut config = vec![
        json!(revision.prompt),
        json!(revision.model),
        json!(revision.model_options),
        json!(revision.runtime),
        json!(revision.tools),
    ];
    // Without these, a digest is the one from before there were any. Rules are a list, settings an object that has no
    // `environment`.
    if !revision.permissions.is_empty() {
        config.push(json!(revision.permissions));
    }
    if !revision.settings.is_default() {
        config.push(json!(revision.settings));
    }
    if let Some(environment) = &revision.environment {
        config.push(json!({ "environment": environment }));
    }
    hex(&sha256(Value::Array(config).to_string().as_bytes()))
}

fn view(agent: Agent) -> AgentView {
    let revision = agent.revision;
    AgentView {
        id: agent.id,
        name: agent.name,
        prompt_hash: hex(&sha256(revision.prompt.as_bytes())),
        prompt: revision.prompt,
        model: revision.model,
        model_options: revision.model_options,
        runtime: revision.runtime,
        revision: revision.number,
        active_revision: RevisionRef { id: revision.id, number: revision.number, digest: revision.digest },
        credential_id: agent.credential,
        limits: agent.limits,
        enabled: agent.enabled,
        spend_caps: agent.spend_caps,
        sources: agent.sources,
        tools: revision.tools,
        permissions: revision.permissions,
        settings: revision.settings,
        environment: revision.environment,
        created_at: agent.created_at,
        updated_at: agent.updated_at,
    }
}

fn revision_view(revision: Revision, active: crate::domain::RevisionId) -> RevisionView {
    RevisionView {
        active: revision.id == active,
        id: revision.id,
        agent_id: revision.agent,
        number: revision.number,
        prompt_hash: hex(&sha256(revision.prompt.as_bytes())),
        prompt: revision.prompt,
        model: revision.model,
        model_options: revision.model_options,
        runtime: revision.runtime,
        tools: revision.tools,
        permissions: revision.permissions,
        settings: revision.settings,
        environment: revision.environment,
        digest: revision.digest,
        created_at: revision.created_at,
    }
}
