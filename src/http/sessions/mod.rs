//! Handlers of sessions, their sandbox and files.

mod actions;
mod archives;
mod change;
mod checkpoints;
mod compact;
mod content;
mod context;
mod control;
pub(crate) mod create;
pub(crate) mod events;
mod execs;
mod export;
mod files;
mod list;
mod operations;
mod patch;
mod permissions;
mod questions;
mod socket;
pub(crate) mod sources;
mod steer;
mod tokens;
mod turns;

use utoipa_axum::{router::OpenApiRouter, routes};

use change::change;

use crate::{
    domain::{SessionId, Status, decide::Command},
    http::{
        path::SessionToArchive,
        prelude::*,
        scope::{ReadAgents, ReadSessions, WriteSessions},
    },
    stream::view,
    wire::{
        agent::PinnedAgentView,
        budget::{ModelUsage, SessionUsage},
        control::WithChildren,
        session::SessionView,
    },
};

/// Routes of sessions.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create::create, list::list))
        .routes(routes!(get, patch::patch, export::delete))
        .routes(routes!(export::export))
        .routes(routes!(export::import))
        .routes(routes!(usage))
        .routes(routes!(agent))
        .routes(routes!(sources::list))
        .routes(routes!(steer::steer, events::messages))
        .routes(routes!(events::list, actions::send))
        .routes(routes!(actions::pending))
        .routes(routes!(actions::claim))
        .routes(routes!(permissions::get))
        .routes(routes!(permissions::revoke))
        .routes(routes!(actions::all_pending))
        .routes(routes!(events::stream))
        .routes(routes!(socket::connect))
        .routes(routes!(events::get))
        .routes(routes!(events::content))
        .routes(routes!(turns::result))
        .routes(routes!(turns::list))
        .routes(routes!(turns::get))
        .routes(routes!(turns::retry))
        .routes(routes!(turns::steps))
        .routes(routes!(cancel))
        .routes(routes!(compact::compact))
        .routes(routes!(heartbeat))
        .routes(routes!(archive))
        .routes(routes!(tokens::mint))
        .merge(sandbox_routes())
}

/// Routes of a session's sandbox.
fn sandbox_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(checkpoints::create, checkpoints::list))
        .routes(routes!(checkpoints::restore))
        .routes(routes!(control::start))
        .routes(routes!(control::stop))
        .routes(routes!(control::pause))
        .routes(routes!(control::resume))
        .routes(routes!(control::wake))
        .routes(routes!(control::reattach))
        .routes(routes!(context::get, context::patch))
        .routes(routes!(context::register, context::tools))
        .routes(routes!(execs::create))
        .routes(routes!(execs::get))
        .routes(routes!(execs::kill))
        .routes(routes!(files::read, files::write))
        .routes(routes!(files::list))
        .routes(routes!(archives::read, archives::write))
}

/// Get a session
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "sessions", operation_id = "getSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub(super) async fn get(caller: Caller<ReadSessions>, Path(session): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let session = tx.session(session).await?;
    let id = session.id;
    let mut view = view(&mut tx, session).await?;
    if view.status == Status::Queued {
        view.queue_position = tx.queue_position(id).await?;
    }
    Ok(respond(&view))
}

/// Get the usage of a session
///
/// In total and per model.
#[utoipa::path(get, path = "/sessions/{session_id}/usage", tag = "sessions", operation_id = "getSessionUsage",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionUsage), Errors))]
pub(super) async fn usage(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let usage = tx.session(id).await?.usage;
    let models = tx.usage_by_model(id).await?.into_iter();
    let models = models.map(|(model, usage)| ModelUsage { model, usage }).collect();
    Ok(respond(&SessionUsage { usage, models }))
}

/// Get the pinned agent of a session
///
/// The agent as the session runs it, with its prompt, also after the agent was changed or deleted. 404 for a
/// session without an agent.
#[utoipa::path(get, path = "/sessions/{session_id}/agent", tag = "sessions", operation_id = "getSessionAgent",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = PinnedAgentView), Errors))]
pub(super) async fn agent(caller: Caller<ReadAgents>, Path(session): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let created = tx.session(session).await?.created;
    let (Some(id), Some(snapshot)) = (created.agent_id, created.agent_snapshot) else {
        return Err(ApiError::not_found());
    };
    // Revisions outlive their agent.
    let prompt = tx.revision(snapshot.revision_id).await?.prompt;
    Ok(respond(&PinnedAgentView::of(id, snapshot, prompt)))
}

/// Cancel the running and the queued turn
///
/// The queued turn ends immediately, the running one as soon as possible. A session that never had a turn
/// is canceled itself: its `exit_status` is `canceled` until the next message, start or command.
#[utoipa::path(post, path = "/sessions/{session_id}/cancel", tag = "sessions", operation_id = "cancelSession",
    params(("session_id" = SessionId, Path)), request_body = WithChildren,
    responses((status = 200, body = SessionView), Errors))]
pub(super) async fn cancel(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<WithChildren>>,
) -> Result<Answer> {
    change(&caller, &once, async |unit, stamp| {
        Ok(match wanted.children {
            true => unit.cancel_all(id, stamp).await?,
            false => unit.execute(id, Command::Cancel, stamp).await?,
        })
    })
    .await
}

/// Extend the idle time of the session's sandbox
///
/// Restarts the idle timers, so that the sandbox is not frozen or hibernated yet. Without a sandbox,
/// nothing happens.
#[utoipa::path(post, path = "/sessions/{session_id}/heartbeat", tag = "sessions", operation_id = "heartbeatSession",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionView), Errors))]
pub(super) async fn heartbeat(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    change(&caller, &once, async |unit, stamp| {
        // Lock order: session before sandbox, as everywhere.
        unit.tx().lock_session(id).await?;
        let heartbeat = unit.tx().heartbeat(id).await?;
        let sandbox = heartbeat.filter(|heartbeat| heartbeat.is_due).map(|heartbeat| heartbeat.sandbox);
        Ok(unit.execute(id, Command::Heartbeat { sandbox }, stamp).await?)
    })
    .await
}

/// Archive a session
///
/// Running work ends now. An archived session cannot be reopened; its log stays readable. The slug is also
/// accepted after the session was archived, until another session takes it.
#[utoipa::path(post, path = "/sessions/{session_id}/archive", tag = "sessions", operation_id = "archiveSession",
    params(("session_id" = SessionId, Path)), request_body = WithChildren,
    responses((status = 200, body = SessionView), Errors))]
pub(super) async fn archive(
    caller: Caller<WriteSessions>,
    SessionToArchive(id): SessionToArchive,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<WithChildren>>,
) -> Result<Answer> {
    change(&caller, &once, async |unit, stamp| {
        Ok(match wanted.children {
            true => unit.archive_all(id, stamp).await?,
            false => unit.archive(id, stamp).await?,
        })
    })
    .await
}
