//! Ends turns that cannot run: a failed check, no model, too many crashes.
//!
//! Appends under the turn's lease, so a worker that lost the session ends nothing.

use std::sync::Arc;

use serde_json::Map;
use tokio::sync::watch;

use super::{
    Runtime, halt::unavailable, journal::LeasedJournal, kept_drafts::KeptDrafts, pinned_tools::PinnedTools,
    preflight::Refusal, reads_objects, tools::LeasedTools,
};
use crate::{
    base::Timestamp,
    domain::{
        ActionId, Actor, Body, Session, TurnId,
        action::Closed,
        event::{Draft, TurnCompleted},
        log_fold::LogFold,
        tool::ToolCall,
        turn::{TurnError, YieldReason},
    },
    harness::{self, CallResult, Halt, Journal as _, unanswered},
    journal::Writer,
    lifecycle::{EgressPolicy, SandboxSpec},
};

/// Error code of a turn that was abandoned after too many crashes.
pub(crate) const RECOVERY_EXHAUSTED: &str = "recovery_exhausted";

/// Ends a turn that cannot run: open calls get a result, and the session stays steerable. A turn that
/// a check rejected is canceled. The session is `failed` when the turn failed before it did anything,
/// or crashed too often.
pub(crate) async fn end_early(
    runtime: &Runtime,
    writer: &Writer,
    session: &Session,
    turn: TurnId,
    refusal: Refusal,
) -> Result<(), Halt> {
    let Refusal { code, message, spend, rejects } = refusal;
    let sandbox = runtime.sandboxes.lease(writer.clone(), SandboxSpec::default(), EgressPolicy::default());
    let journal = LeasedJournal {
        writer: writer.clone(),
        sandbox: Arc::clone(&sandbox),
        agent: None,
        kept: KeptDrafts::default(),
        started: watch::Sender::default(),
        files: runtime.sandboxes.files.clone(),
    };
    let fold = writer.fold(reads_objects(session)).await.map_err(unavailable)?.fold;
    let origin = runtime.sandboxes.journal.origin();
    let draft = |body: Body| Draft {
        id: origin.id(),
        actor: Actor::system(),
        level: body.level(),
        turn_id: Some(turn),
        step_id: None,
        refs: Map::new(),
        body,
    };
    let open = fold.open_calls(turn);
    // A command of an earlier attempt would continue beside the next turn.
    let tools = LeasedTools::new(
        runtime.tool_parts(),
        &runtime.sandboxes,
        writer,
        sandbox,
        PinnedTools::default(),
        (&fold, turn),
    );
    for call in &open {
        harness::Tools::cancel(&tools, call).await;
    }
    let mut drafts: Vec<_> = unsettled(&fold, turn, open).into_iter().map(draft).collect();
    let state = fold.turn(turn);
    let did_something = state.is_some_and(|turn| turn.step.is_some() || turn.has_acted);
    let own = session.running.iter().chain(&session.queued).find(|open| open.id == turn);
    if rejects {
        drafts.push(draft(Body::SessionRejected { reason: code.to_owned(), message: message.clone() }));
    }
    if let Some(spend) = spend {
        drafts.push(draft(spend.exceeded()));
    }
    let yield_reason = match spend {
        Some(_) => YieldReason::BudgetExceeded,
        None if rejects => YieldReason::Canceled,
        None => YieldReason::Error,
    };
    let error = spend.is_none().then(|| TurnError { code: code.to_owned(), message });
    drafts.push(draft(Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id: turn,
        yield_reason,
        result_event_id: state.and_then(|turn| turn.result),
        usage: own.map(|turn| turn.usage).unwrap_or_default(),
        active_seconds: own.map(|turn| turn.active_seconds).unwrap_or_default(),
        failed: yield_reason == YieldReason::Error && (code == RECOVERY_EXHAUSTED || !did_something),
        error,
        output: None,
        output_repairs: 0,
        limit: spend.map(|spend| spend.limit.to_owned()),
    }))));
    journal.record(drafts, fold.read_to()).await.map(drop)
}

/// Returns the results of open calls that nobody will settle, and the ends of their actions.
fn unsettled(fold: &LogFold, turn: TurnId, open: Vec<ToolCall>) -> Vec<Body> {
    let state = fold.turn(turn);
    let result = |call: ToolCall| {
        let lost = || {
            let words = "The turn ended before this call could be settled; its outcome is unknown.";
            CallResult::unknown(words)
        };
        state.and_then(|state| unanswered(state, &call.call_id, "ended")).unwrap_or_else(lost).body(&call)
    };
    let actions = state.into_iter().flat_map(|state| state.open_actions());
    let closed = |(action_id, ..): (ActionId, &str, Timestamp)| Body::ActionClosed {
        action_id,
        reason: Closed::Withdrawn,
    };
    open.into_iter().map(result).chain(actions.map(closed)).collect()
}
