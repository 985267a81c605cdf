//! Sessions as shown in lists and responses: the fold of the log plus state stored elsewhere.
//!
//! Called by `http` and by the live list, which show the same view of a session.

use std::collections::HashSet;

use crate::{
    domain::{Session, Status, budget::Consumed},
    store::{self, Tx, budget::Below, capacity::SandboxWait, sandbox_summary::SandboxSummary},
    wire::{
        budget::ChildrenConsumed,
        sandbox::{SandboxState, SandboxView, SandboxWaitView},
        session::SessionView,
    },
};

/// Builds session views with their retry times, sandboxes and usage of descendants.
pub async fn views(tx: &mut Tx, sessions: Vec<Session>) -> Result<Vec<SessionView>, store::Error> {
    let waits = tx.waits(&sessions).await?;
    let mut sandboxes = tx.sandboxes(&sessions).await?;
    let ids: Vec<_> = sessions.iter().map(|session| session.id).collect();
    let mut below = tx.below(&ids).await?;
    let mut sandbox_waits = tx.sandbox_waits(&sessions).await?;
    let may_wait = |one: &&Session| one.is_unused() && one.hold.is_none() && !sandboxes.contains_key(&one.id);
    let unused: Vec<_> = sessions.iter().filter(may_wait).map(|one| one.id).collect();
    let awaited = match unused.is_empty() {
        true => HashSet::new(),
        false => tx.with_open_operations(&unused).await?,
    };
    let view = |session: Session| {
        let id = session.id;
        let is_archived = session.status == Status::Archived;
        // The files of an archived session were removed with its sandbox.
        let shown = sandboxes.remove(&id).filter(|shown| !(is_archived && shown.is_ended));
        let view = SessionView::from(session);
        let has_none = !is_archived && shown.as_ref().is_none_or(|shown| shown.is_ended);
        let sandbox_wait = sandbox_waits.remove(&id).filter(|_| has_none).map(waiting);
        let phase = match phase(&view, shown.as_ref(), awaited.contains(&id)) {
            None | Some("pending" | "creating_sandbox") if sandbox_wait.is_some() => {
                Some("waiting_for_capacity")
            }
            phase => phase,
        };
        // Its job is tried again for the capacity alone.
        let wait = waits.get(&id).copied().filter(|_| phase != Some("waiting_for_capacity"));
        let view = SessionView { phase, ..view }.waiting(wait);
        SessionView {
            sandbox: shown.map(|shown| sandbox(&shown)),
            sandbox_wait,
            budget_consumed: match below.remove(&id) {
                Some(below) => view.budget_consumed.with(children(&below)),
                None => view.budget_consumed,
            },
            ..view
        }
    };
    Ok(sessions.into_iter().map(view).collect())
}

/// Builds the view of one session.
pub async fn view(tx: &mut Tx, session: Session) -> Result<SessionView, store::Error> {
    let mut views = views(tx, vec![session]).await?;
    Ok(views.pop().expect("one session has one view"))
}

/// Returns the phase of a session from the state of its sandbox. `is_awaited` says that a caller's
/// operation needs one.
fn phase(view: &SessionView, shown: Option<&SandboxSummary>, is_awaited: bool) -> Option<&'static str> {
    let is_starting = |shown: &SandboxSummary| shown.state == "live" && !shown.is_announced;
    match (view.phase, shown) {
        _ if view.status == Status::Archived => None,
        (Some("paused" | "requires_action" | "waiting_for_sessions"), _) => view.phase,
        (_, Some(shown)) if shown.is_rotating => Some("rotating"),
        (_, Some(shown)) if is_starting(shown) => Some("creating_sandbox"),
        // It has a sandbox, or had one.
        (_, Some(_)) => None,
        (Some(_), None) if is_awaited => Some("creating_sandbox"),
        (phase, None) => phase,
    }
}

fn waiting(wait: SandboxWait) -> SandboxWaitView {
    SandboxWaitView { shortage: wait.shortage, queue_position: wait.queue_position, since: wait.since }
}

fn children(below: &Below) -> ChildrenConsumed {
    let Consumed { tokens, cost_micros, tool_calls } = below.used;
    ChildrenConsumed { sessions: below.sessions, tokens, cost_micros, tool_calls }
}

fn sandbox(shown: &SandboxSummary) -> SandboxView {
    let state = match shown.state.as_str() {
        "frozen" => SandboxState::Frozen,
        "ending" => SandboxState::Stopping,
        "ended" if shown.is_put_away => SandboxState::Hibernated,
        "ended" => SandboxState::Lost,
        _ if shown.is_announced => SandboxState::Running,
        _ => SandboxState::Starting,
    };
    SandboxView {
        id: shown.sandbox,
        state,
        checkpoint_id: shown.checkpoint,
        created_at: shown.created_at,
        expires_at: shown.expires_at.filter(|_| !shown.is_ended),
    }
}
