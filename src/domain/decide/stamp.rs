//! The actor of a command, and events in its name that several commands need.

use serde_json::Map;

use crate::{
    base::Origin,
    domain::{
        TurnId,
        action::Closed,
        event::{Actor, Body, CancelMode, Draft, Outcome, TurnCompleted},
        open_work::{CallEnd, OpenCall, OpenWork},
        session::Session,
        turn::{Turn, YieldReason},
    },
};

/// The actor of a command, and the source of new ids.
#[derive(Clone, Debug)]
pub struct Stamp {
    pub actor: Actor,
    pub origin: Origin,
}

impl Stamp {
    /// Creates an event by this actor, at the default level of its type.
    pub fn draft(&self, turn_id: Option<TurnId>, body: Body) -> Draft {
        Draft {
            id: self.origin.id(),
            actor: self.actor.clone(),
            level: body.level(),
            turn_id,
            step_id: None,
            refs: Map::new(),
            body,
        }
    }
}

/// The end of a turn that a caller ends before a worker does.
pub(super) fn canceled(turn: &Turn) -> Body {
    Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id: turn.id,
        yield_reason: YieldReason::Canceled,
        result_event_id: None,
        usage: turn.usage,
        active_seconds: turn.active_seconds,
        error: None,
        output: None,
        output_repairs: 0,
        limit: None,
        failed: false,
    }))
}

/// Ends the running turn if it waits; else requests its end, unless that was requested before.
pub(super) fn end_or_request(
    session: &Session,
    open: &OpenWork,
    mode: CancelMode,
    stamp: &Stamp,
) -> Vec<Draft> {
    let Some(running) = &session.running else { return Vec::new() };
    if session.is_waiting() {
        let mut drafts = withdrawn(session, running, open, "canceled", stamp);
        drafts.push(stamp.draft(Some(running.id), canceled(running)));
        return drafts;
    }
    let is_new = session.cancel_turn_id != Some(running.id);
    let request = Body::TurnCancelRequested { turn_id: running.id, mode };
    is_new.then(|| stamp.draft(Some(running.id), request)).into_iter().collect()
}

/// The open work of a turn, as it ends: calls get a result, and open actions are withdrawn. A waiting turn has
/// started none of its open calls.
pub(super) fn withdrawn(
    session: &Session,
    turn: &Turn,
    open: &OpenWork,
    why: &str,
    stamp: &Stamp,
) -> Vec<Draft> {
    let result = |call: &OpenCall| {
        let not_run = || (Outcome::NotRun, format!("The turn was {why} before anybody ran this tool."));
        let mut is_error = true;
        let mut files = Vec::new();
        let (outcome, output) = match &call.action {
            Some((_, _, Some(CallEnd::Answered { text, is_error: failed, content }))) => {
                is_error = *failed;
                files.clone_from(content);
                (Outcome::Ran, text.clone())
            }
            Some((_, _, Some(CallEnd::Rejected(words)))) => (Outcome::NotRun, words.clone()),
            Some((_, _, Some(CallEnd::Expired(kind)))) => {
                let (words, may_have_run) = kind.expired();
                (if may_have_run { Outcome::Unknown } else { Outcome::NotRun }, words.to_owned())
            }
            _ if call.is_denied => not_run(),
            _ if call.is_elicited => (
                Outcome::Unknown,
                format!(
                    "The turn was {why} before the server that asked had its answer; its outcome is unknown."
                ),
            ),
            Some((_, _, None)) => not_run(),
            Some((_, _, Some(CallEnd::Confirmed))) if !call.is_started => not_run(),
            None if session.is_waiting() => not_run(),
            Some((_, _, Some(CallEnd::Confirmed))) | None => {
                (Outcome::Unknown, format!("The turn was {why} while this tool ran; its outcome is unknown."))
            }
        };
        Body::ToolResult {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            output,
            is_error,
            outcome,
            duration_ms: 0,
            content: files,
        }
    };
    let withdrawn = |call: &OpenCall| match call.action {
        Some((action_id, _, None)) => Some(Body::ActionClosed { action_id, reason: Closed::Withdrawn }),
        Some((_, _, Some(_))) | None => None,
    };
    let bodies = open.0.iter().map(result).chain(open.0.iter().filter_map(withdrawn));
    bodies.map(|body| stamp.draft(Some(turn.id), body)).collect()
}
