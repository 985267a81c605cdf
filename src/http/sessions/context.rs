//! Context and registered tools of a session.

use crate::{
    base::limit::TOOLS_MAX,
    domain::{
        Session, SessionId,
        context::{Context, ContextChange},
        custom_tool::{AgentTool, CustomTool},
        decide::Command,
        registry::Tool,
    },
    http::{
        agents::check_tools,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    wire::context::{ContextInput, ContextView, ToolInput, ToolView, context_problem},
};

/// Get the context of the session's commands
#[utoipa::path(get, path = "/sessions/{session_id}/context", tag = "sandbox", operation_id = "getContext",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = ContextView), Errors))]
pub(super) async fn get(caller: Caller<ReadSessions>, Path(session): Path<SessionId>) -> Result<Response> {
    let session = caller.begin().await?.session(session).await?;
    Ok(respond(&ContextView::from(session.context)))
}

/// Change the context of the session's commands
///
/// Named keys are set, null removes a key, other keys are unchanged.
#[utoipa::path(patch, path = "/sessions/{session_id}/context", tag = "sandbox", operation_id = "updateContext",
    params(("session_id" = SessionId, Path)), request_body = ContextInput,
    responses((status = 200, body = ContextView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Body(wanted): Body<ContextInput>,
) -> Result<Response> {
    let stamp = caller.stamp();
    let mut unit = caller.unit().await?;
    let before = unit.tx().lock_session(id).await?.context;
    let change = validate(wanted, before)?;
    let executed = unit.execute(id, Command::ChangeContext(change), &stamp).await?;
    unit.commit().await?;
    Ok(respond(&ContextView::from(executed.session.context)))
}

/// Validates the context that results from a change.
pub(super) fn validate(wanted: ContextInput, before: Context) -> Result<ContextChange> {
    let (change, mut after) = (ContextChange::from(wanted), before);
    after.apply(&change);
    match context_problem(&after) {
        None => Ok(change),
        Some((field, words)) => Err(ApiError::invalid(field, format!("`{field}` {words}"))),
    }
}

/// List the registered tools
///
/// Sorted by name. Their number is limited, so the list has one page.
#[utoipa::path(get, path = "/sessions/{session_id}/tools", tag = "sandbox", operation_id = "listTools",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = Page<ToolView>), Errors))]
pub(super) async fn tools(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    caller.begin().await?.session(id).await?;
    let tools = caller.app.0.journal.registered_tools(caller.org, id).await?;
    let data: Vec<_> = tools.into_iter().map(ToolView::from).collect();
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Register a tool
///
/// Registering the same name again replaces the tool. With `runs`: `caller` the agent gets it from its next turn on, as
/// a custom tool; else the service only records it.
#[utoipa::path(post, path = "/sessions/{session_id}/tools", tag = "sandbox", operation_id = "registerTool",
    params(("session_id" = SessionId, Path)), request_body = ToolInput,
    responses((status = 200, body = ToolView), Errors))]
pub(super) async fn register(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Idempotent(once, Body(wanted)): Idempotent<Body<ToolInput>>,
) -> Result<Answer> {
    let stamp = caller.stamp();
    let tool = Tool::from(wanted);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        // The lock prevents concurrent requests from exceeding the limit.
        let session = unit.tx().lock_session(id).await?;
        let all = unit.tx().registered_tools(id).await?;
        if let Some(custom) = tool.custom() {
            check_custom(&session, &all, custom).await?;
        }
        let known = all.iter().find(|known| known.name == tool.name).cloned();
        if known.is_none() && all.len() >= TOOLS_MAX {
            return Err(ApiError::conflict(
                "too_many_tools",
                format!("a session has at most {TOOLS_MAX} tools"),
            ));
        }
        unit.execute(id, Command::RegisterTool { tool: tool.clone(), known }, &stamp).await?;
        Ok(Answer::new(StatusCode::OK, &ToolView::from(tool.clone())))
    })
    .await
}

/// Checks a tool that the agent gets: its definition, that the agent has none of this name, and the bounds of all its
/// custom tools.
async fn check_custom(session: &Session, registered: &[Tool], custom: CustomTool) -> Result<()> {
    let snapshot = session.created.agent_snapshot.as_ref();
    let own = snapshot.and_then(|agent| agent.tools.as_deref()).unwrap_or_default();
    if own.iter().any(|tool| tool.name() == custom.name) {
        let words = format!("the agent of the session has a tool `{}`", custom.name);
        return Err(ApiError { param: Some("name".to_owned()), ..ApiError::conflict("tool_exists", words) });
    }
    let mut all: Vec<_> = own.iter().filter(|tool| tool.custom().is_some()).cloned().collect();
    let others = registered.iter().filter(|tool| tool.name != custom.name).filter_map(Tool::custom);
    all.extend(others.chain([custom.clone()]).map(|tool| AgentTool::Custom(Box::new(tool))));
    check_tools(&all).await.map_err(|error| {
        // The request has no list.
        let param = error
            .param
            .as_deref()
            .and_then(|param| param.split_once("]."))
            .map(|(_, field)| field.to_owned());
        ApiError { param, ..error }
    })
}
