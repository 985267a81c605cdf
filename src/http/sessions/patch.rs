//! Change of a session: title, slug, metadata, limits, and the agent that it pins.

use serde_json::json;

use crate::{
    domain::{
        SessionId,
        custom_tool::AgentTool,
        decide::{Change, Command},
        registry::Tool,
        session::{AgentSnapshot, Session},
        skill,
    },
    http::{
        agents::{
            check_fallbacks, check_mcp_servers, check_output_schema, check_rules, check_tools, in_order,
        },
        auth::missing_scope,
        prelude::*,
        scope::{ApproveActions, Scope, WriteSessions},
        skills,
    },
    stream::view,
    trigger,
    wire::session::{PatchSession, SessionView},
};

/// Change a session
///
/// Limits can be raised while a turn runs. Tools, permissions and settings of the agent hold from the next turn on, and
/// are refused with `turn_running` while one runs or waits.
#[utoipa::path(patch, path = "/sessions/{session_id}", tag = "sessions", operation_id = "updateSession",
    params(("session_id" = SessionId, Path)), request_body = PatchSession,
    responses((status = 200, body = SessionView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Body(change): Body<PatchSession>,
) -> Result<Response> {
    // The rules of a session may hold back calls that another person has to confirm. What they allow of a server depends
    // on its address and on what is said of its tools.
    let changes_rules = change.permissions.is_some() || change.mcp_servers.is_some();
    if changes_rules && !ApproveActions::is_in(&caller.scopes) {
        return Err(missing_scope(ApproveActions::NAME));
    }
    if let Some(rules) = &change.permissions {
        check_rules(rules)?;
    }
    check_output_schema(change.output_schema.as_ref().and_then(Option::as_ref)).await?;
    check_fallbacks(&caller.app, change.fallback_models.as_ref().and_then(Option::as_deref))?;
    skills::check_choices(change.skills.as_ref().and_then(Option::as_deref))?;
    let stamp = caller.stamp();
    let mut unit = caller.unit().await?;
    let servers = change.mcp_servers.as_ref().and_then(Option::as_deref);
    check_mcp_servers(&caller.app, &mut unit, servers).await?;
    // The lock ensures that concurrent changes of different fields are both kept.
    let session = unit.tx().lock_session(id).await?;
    let limits = change.limits.as_ref().map(|limits| limits.over(session.created.limits));
    let agent_snapshot = if change.changes_agent() {
        Some(Box::new(changed_agent(&mut unit, &session, &change).await?))
    } else {
        None
    };
    let rules = |session: &Session| {
        session.created.agent_snapshot.as_ref().map(|agent| agent.permissions.session.clone())
    };
    let rules_before = rules(&session);
    let servers = change.mcp_servers.as_ref().map(|servers| {
        let named = servers.iter().flatten().map(|server| match &server.command {
            Some(command) => json!({ "name": server.name, "command": command }),
            None => json!({ "name": server.name, "url": server.url }),
        });
        named.collect::<Vec<_>>()
    });
    let fallbacks = change
        .fallback_models
        .as_ref()
        .map(|models| models.iter().flatten().map(|fallback| fallback.model.clone()).collect::<Vec<_>>());
    let repins = change.skills.is_some();
    let PatchSession { title, slug, metadata, .. } = change;
    let command = Command::Patch(Change { title, slug, metadata, limits, agent_snapshot });
    let executed = unit.execute(id, command, &stamp).await?;
    if repins {
        unit.tx().replace_skills(&executed.session).await?;
    }
    let rules_after = rules(&executed.session);
    if rules_after != rules_before {
        let details = json!({ "permissions": rules_after });
        caller.record_audit(unit.tx(), "session.permissions_changed", id, details).await?;
    }
    if let Some(servers) = servers {
        let details = json!({ "mcp_servers": servers });
        caller.record_audit(unit.tx(), "session.mcp_servers_changed", id, details).await?;
    }
    if let Some(models) = fallbacks {
        // Their providers get the history.
        let details = json!({ "fallback_models": models });
        caller.record_audit(unit.tx(), "session.fallback_models_changed", id, details).await?;
    }
    let view = view(unit.tx(), executed.session).await?;
    unit.commit().await?;
    Ok(respond(&view))
}

/// Returns the agent of a session with a change.
async fn changed_agent(unit: &mut Unit, session: &Session, change: &PatchSession) -> Result<AgentSnapshot> {
    let Some(mut agent) = session.created.agent_snapshot.clone() else {
        let message = "the changed fields are those of an agent, and the session has none";
        return Err(ApiError::invalid("agent", message));
    };
    let revision = unit.tx().revision(agent.revision_id).await?;
    if let Some(tools) = &change.tools {
        agent.tools = match tools {
            Some(tools) => Some(in_order(tools.clone())),
            None => revision.tools,
        };
        let registered = unit.tx().registered_tools(session.id).await?;
        check_with_registered(agent.tools.as_deref().unwrap_or_default(), &registered).await?;
    }
    if let Some(rules) = &change.permissions {
        agent.permissions.session.clone_from(rules);
    }
    agent.settings = change.settings().applied_to(agent.settings, &revision.settings);
    if change.fallback_models.is_some() {
        trigger::check_fallback_credentials(unit, &agent.model, &agent.settings).await?;
    }
    if change.skills.is_some() {
        agent.pinned_skills = trigger::pinned_skills(unit, &agent.settings, agent.tools.as_deref()).await?;
    }
    if change.tools.is_some()
        && !agent.pinned_skills.is_empty()
        && !skill::are_readable(agent.tools.as_deref())
    {
        return Err(trigger::Refused::UnreadableSkills.into());
    }
    Ok(agent)
}

/// Checks tools that replace those of a session, together with those that callers have registered with it.
async fn check_with_registered(tools: &[AgentTool], registered: &[Tool]) -> Result<()> {
    let registered: Vec<_> = registered.iter().filter_map(Tool::custom).collect();
    let taken = |tool: &AgentTool| registered.iter().any(|known| known.name == tool.name());
    if let Some(index) = tools.iter().position(taken) {
        let words = format!("`{}` is registered with the session", tools[index].name());
        let param = Some(format!("tools[{index}]"));
        return Err(ApiError { param, ..ApiError::conflict("tool_exists", words) });
    }
    let registered = registered.into_iter().map(|tool| AgentTool::Custom(Box::new(tool)));
    check_tools(&tools.iter().cloned().chain(registered).collect::<Vec<_>>()).await
}
