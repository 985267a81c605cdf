//! Organization events that are in no session's log, for its webhooks.
//!
//! Created by `http` and `webhook` and stored with their deliveries: a notice about a deleted
//! session must outlive the session's log.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    event::{Actor, Level},
    ids::*,
};
use crate::base::{Origin, Timestamp};

/// An event of the organization, in no log: it has no `seq`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Notice {
    /// The id that the deliveries of the event share.
    pub id: EventId,
    #[serde(with = "time::serde::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub ts: Timestamp,
    /// Session of the event; null for an event of the organization.
    #[schema(required)]
    pub session: Option<SessionId>,
    pub actor: Actor,
    pub level: Level,
    /// Empty.
    pub refs: Map<String, Value>,
    #[serde(flatten)]
    #[schema(ignore)]
    pub body: NoticeBody,
}

/// Type and data of a notice; serialized as `type` and `body`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", content = "body")]
pub enum NoticeBody {
    /// A caller deleted the session with all of its data.
    #[serde(rename = "session.deleted")]
    SessionDeleted { session_id: SessionId },
    /// The service disabled a webhook or a destination.
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled {
        /// The webhook, or the destination of the session.
        webhook_id: String,
        /// `gone` or `failing`.
        reason: String,
    },
    /// A caller requested a test delivery.
    #[serde(rename = "webhook.test")]
    WebhookTest { webhook_id: WebhookId },
    /// The token endpoint refused the OAuth client of a credential: a caller must replace it.
    #[serde(rename = "credential.refresh_failed")]
    CredentialRefreshFailed {
        credential_id: CredentialId,
        /// Error of the token endpoint.
        reason: String,
    },
    /// The service paused a schedule after consecutive failed runs.
    #[serde(rename = "schedule.paused")]
    SchedulePaused {
        schedule_id: ScheduleId,
        agent_id: AgentId,
        /// `failing`.
        reason: String,
        consecutive_failures: i32,
    },
}

impl Notice {
    /// A caller deleted a session with all of its data.
    pub fn session_deleted(session: SessionId, actor: Actor, origin: &Origin) -> Self {
        Self::new(Some(session), actor, NoticeBody::SessionDeleted { session_id: session }, origin)
    }

    /// A caller tests a webhook.
    pub fn test(webhook: WebhookId, actor: Actor, origin: &Origin) -> Self {
        Self::new(None, actor, NoticeBody::WebhookTest { webhook_id: webhook }, origin)
    }

    /// The service disabled a destination.
    ///
    /// `destination` is its id as its owner knows it; `reason` is `gone` or `failing`.
    pub fn disabled(destination: String, session: Option<SessionId>, reason: &str, origin: &Origin) -> Self {
        let body = NoticeBody::WebhookDisabled { webhook_id: destination, reason: reason.to_owned() };
        Self::new(session, Actor::system(), body, origin)
    }

    /// The token endpoint refused the OAuth client of a credential.
    pub fn credential_refused(credential: CredentialId, reason: &str, origin: &Origin) -> Self {
        let body =
            NoticeBody::CredentialRefreshFailed { credential_id: credential, reason: reason.to_owned() };
        Self::new(None, Actor::system(), body, origin)
    }

    /// The service paused a schedule after consecutive failed runs.
    pub fn schedule_paused(schedule: ScheduleId, agent: AgentId, failures: i32, origin: &Origin) -> Self {
        let body = NoticeBody::SchedulePaused {
            schedule_id: schedule,
            agent_id: agent,
            reason: "failing".to_owned(),
            consecutive_failures: failures,
        };
        Self::new(None, Actor::system(), body, origin)
    }

    /// Returns the type on the wire, such as `session.deleted`.
    pub fn kind(&self) -> &'static str {
        match self.body {
            NoticeBody::SessionDeleted { .. } => "session.deleted",
            NoticeBody::WebhookDisabled { .. } => "webhook.disabled",
            NoticeBody::WebhookTest { .. } => "webhook.test",
            NoticeBody::CredentialRefreshFailed { .. } => "credential.refresh_failed",
            NoticeBody::SchedulePaused { .. } => "schedule.paused",
        }
    }

    /// Returns the event as receivers get it: like a log event, without `seq`.
    pub fn event(&self) -> Value {
        serde_json::to_value(self).expect("a clock's time always formats as RFC 3339")
    }

    fn new(session: Option<SessionId>, actor: Actor, body: NoticeBody, origin: &Origin) -> Self {
        let (id, ts) = (origin.id(), origin.now());
        Self { id, ts, session, actor, level: Level::User, refs: Map::new(), body }
    }
}
