//! The actor of a command, and events in its name that several commands need.

use serde_json::Map;

use crate::{
    base::Origin,
    domain::{
        TurnId, Usage,
        event::{Actor, Body, CancelMode, Draft, TurnCompleted},
        session::Session,
        turn::YieldReason,
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
pub(super) fn canceled(turn_id: TurnId, usage: Usage) -> Body {
    Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id,
        yield_reason: YieldReason::Canceled,
        result_event_id: None,
        usage,
        active_seconds: 0,
        error: None,
        limit: None,
        failed: false,
    }))
}

/// Requests the end of the running turn; `None` if that was requested before.
pub(super) fn cancel_request(session: &Session, mode: CancelMode, stamp: &Stamp) -> Option<Draft> {
    let running = session.running.as_ref()?;
    (session.cancel_turn_id != Some(running.id))
        .then(|| stamp.draft(Some(running.id), Body::TurnCancelRequested { turn_id: running.id, mode }))
}
