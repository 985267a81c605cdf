//! What an organization's webhooks are told that stands in no log.
//!
//! Made by `http` and `webhook`, stored with its deliveries: a notice about a deleted
//! session must outlive the session's log.

use serde_json::{Value, json};

use super::{event::Actor, ids::*};
use crate::base::{Origin, Timestamp};

/// A fact about the organization, with the id that its deliveries share.
#[derive(Clone, Debug)]
pub struct Notice {
    pub id: EventId,
    pub ts: Timestamp,
    pub actor: Actor,
    pub session: Option<SessionId>,
    /// The type on the wire, as in `session.deleted`.
    pub kind: &'static str,
    pub body: Value,
}

impl Notice {
    /// A caller deleted a session with everything that it had.
    pub fn session_deleted(session: SessionId, actor: Actor, origin: &Origin) -> Self {
        Self::new("session.deleted", Some(session), actor, json!({ "session_id": session }), origin)
    }

    /// A caller wants to see whether a webhook works.
    pub fn test(webhook: WebhookId, actor: Actor, origin: &Origin) -> Self {
        Self::new("webhook.test", None, actor, json!({ "webhook_id": webhook }), origin)
    }

    /// The service disabled a destination; `destination` is its id as its owner
    /// knows it, `reason` is `gone` or `failing`.
    pub fn disabled(destination: String, session: Option<SessionId>, reason: &str, origin: &Origin) -> Self {
        let body = json!({ "webhook_id": destination, "reason": reason });
        Self::new("webhook.disabled", session, Actor::system(), body, origin)
    }

    /// The service turned a schedule off, because its runs failed one after another.
    pub fn schedule_paused(schedule: ScheduleId, agent: AgentId, failures: i32, origin: &Origin) -> Self {
        let body = json!({
            "schedule_id": schedule, "agent_id": agent, "reason": "failing", "consecutive_failures": failures,
        });
        Self::new("schedule.paused", None, Actor::system(), body, origin)
    }

    /// The event as receivers get it: that of a log without `seq`.
    pub fn event(&self) -> Value {
        let ts = self.ts.format(&time::format_description::well_known::Rfc3339);
        json!({
            "id": self.id,
            "ts": ts.expect("every time that a clock tells has this form"),
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
