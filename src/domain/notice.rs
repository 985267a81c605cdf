//! Organization events that are in no session's log, for its webhooks.
//!
//! Created by `http` and `webhook` and stored with their deliveries: a notice about a deleted
//! session must outlive the session's log.

use serde_json::{Value, json};

use super::{event::Actor, ids::*};
use crate::base::{Origin, Timestamp};

/// An event of the organization, with the id that its deliveries share.
#[derive(Clone, Debug)]
pub struct Notice {
    pub id: EventId,
    pub ts: Timestamp,
    pub actor: Actor,
    pub session: Option<SessionId>,
    /// The type on the wire, such as `session.deleted`.
    pub kind: &'static str,
    pub body: Value,
}

impl Notice {
    /// A caller deleted a session with all of its data.
    pub fn session_deleted(session: SessionId, actor: Actor, origin: &Origin) -> Self {
        Self::new("session.deleted", Some(session), actor, json!({ "session_id": session }), origin)
    }

    /// A caller tests a webhook.
    pub fn test(webhook: WebhookId, actor: Actor, origin: &Origin) -> Self {
        Self::new("webhook.test", None, actor, json!({ "webhook_id": webhook }), origin)
    }

    /// The service disabled a destination.
    ///
    /// `destination` is its id as its owner knows it; `reason` is `gone` or `failing`.
    pub fn disabled(destination: String, session: Option<SessionId>, reason: &str, origin: &Origin) -> Self {
        let body = json!({ "webhook_id": destination, "reason": reason });
        Self::new("webhook.disabled", session, Actor::system(), body, origin)
    }

    /// The service paused a schedule after consecutive failed runs.
    pub fn schedule_paused(schedule: ScheduleId, agent: AgentId, failures: i32, origin: &Origin) -> Self {
        let body = json!({
            "schedule_id": schedule, "agent_id": agent, "reason": "failing", "consecutive_failures": failures,
        });
        Self::new("schedule.paused", None, Actor::system(), body, origin)
    }

    /// Returns the event as receivers get it: like a log event, without `seq`.
    pub fn event(&self) -> Value {
        let ts = self.ts.format(&time::format_description::well_known::Rfc3339);
        json!({
            "id": self.id,
            "ts": ts.expect("a clock's time always formats as RFC 3339"),
            "session": self.session,
            "actor": self.actor,
            "type": self.kind,
            "level": "user",
            "body": self.body,
            "refs": {},
        })
    }

    fn new(
        kind: &'static str,
        session: Option<SessionId>,
        actor: Actor,
        body: Value,
        origin: &Origin,
    ) -> Self {
        Self { id: origin.id(), ts: origin.now(), actor, session, kind, body }
    }
}
