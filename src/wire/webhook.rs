//! Request and response bodies of webhooks, destinations and deliveries.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{
        LIST_ITEM_BYTES_MAX, LIST_ITEMS_MAX, NET_URL_BYTES_MAX, WEBHOOK_OVERLAP_SECONDS,
        WEBHOOK_SECRET_BYTES_MAX,
    },
    domain::{DeliveryId, DestinationId, EventId, Level, SessionId, WebhookId},
};

/// Destination or webhook to create.
#[derive(Clone, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateDestination {
    /// An https URL with a publicly reachable address.
    #[garde(length(bytes, min = 1, max = NET_URL_BYTES_MAX))]
    pub url: String,
    /// Signing secret; generated when absent.
    #[garde(inner(length(bytes, min = 8, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    /// Highest event level that is sent; `user` when absent.
    #[garde(skip)]
    pub level: Option<Level>,
    /// Exact event types or `prefix.*`; all types when absent.
    #[garde(inner(length(max = LIST_ITEMS_MAX), inner(length(bytes, min = 1, max = LIST_ITEM_BYTES_MAX))))]
    pub types: Option<Vec<String>>,
    /// Whether input events include the caller's `raw`.
    #[garde(skip)]
    #[serde(default)]
    pub include_raw: bool,
    #[garde(skip)]
    pub enabled: Option<bool>,
}

impl std::fmt::Debug for CreateDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateDestination").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Changes to a destination or webhook; absent fields are unchanged.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchDestination {
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub url: Option<String>,
    #[garde(inner(length(bytes, min = 8, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    #[garde(skip)]
    pub level: Option<Level>,
    /// Null selects all types.
    #[garde(inner(inner(length(max = LIST_ITEMS_MAX), inner(length(bytes, min = 1, max = LIST_ITEM_BYTES_MAX)))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Vec<String>>)]
    pub types: Option<Option<Vec<String>>>,
    #[garde(skip)]
    pub include_raw: Option<bool>,
    #[garde(skip)]
    pub enabled: Option<bool>,
}

/// Webhook endpoint of one session.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Destination)]
pub(crate) struct DestinationView {
    pub id: DestinationId,
    pub session: SessionId,
    /// Always `webhook`.
    pub kind: String,
    pub url: String,
    pub level: Level,
    #[schema(required)]
    pub types: Option<Vec<String>>,
    pub include_raw: bool,
    pub enabled: bool,
    pub has_secret: bool,
    /// The generated signing secret; only in the response to the request that generated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Only events with a larger `seq` are sent.
    pub created_after_seq: i64,
    /// Reason why the service disabled it: `gone` (the receiver returned 410) or `failing` (no delivery
    /// was accepted for five days). Enabling it again clears this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Time of the first failure since the last success.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<OffsetDateTime>,
    /// Time until which deliveries are also signed with the previous secret.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub secret_before_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// Webhook of the organization; it receives events of every session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Webhook)]
pub(crate) struct WebhookView {
    pub id: WebhookId,
    pub url: String,
    /// Highest event level that is sent. `session.created`, `session.deleted`, `limit.*` and
    /// `webhook.disabled` are sent at any level.
    pub level: Level,
    #[schema(required)]
    pub types: Option<Vec<String>>,
    pub include_raw: bool,
    pub enabled: bool,
    pub has_secret: bool,
    /// The generated signing secret; only in the response to the request that generated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Reason why the service disabled it: `gone` (the receiver returned 410) or `failing` (no delivery
    /// was accepted for five days). Enabling it again clears this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Time of the first failure since the last success.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<OffsetDateTime>,
    /// Time until which deliveries are also signed with the previous secret.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub secret_before_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// Options for replacing a signing secret.
#[derive(Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RotateSecret {
    /// The new secret; generated when absent.
    #[garde(inner(length(bytes, min = 8, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    /// Seconds for which both secrets are used to sign or accepted: 0 to 604800, default 86400.
    #[garde(range(min = 0, max = WEBHOOK_OVERLAP_SECONDS.1))]
    #[schema(minimum = 0, maximum = 604800)]
    pub overlap_seconds: Option<i64>,
}

/// Status of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeliveryStatus {
    /// Waiting to be sent.
    Pending,
    /// Being sent.
    Delivering,
    /// Accepted by the receiver.
    Delivered,
    /// The last attempt failed; it will be retried.
    Failed,
    /// Every attempt failed.
    DeadLetter,
}

/// One event for one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub(crate) struct DeliveryView {
    pub id: DeliveryId,
    /// Session of the event; absent for a notification about the organization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Destination of the session that receives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<DestinationId>,
    /// Webhook of the organization that receives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookId>,
    pub event_id: EventId,
    /// `seq` of the event in the session's log; absent for events outside of a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_seq: Option<i64>,
    /// Event type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub status: DeliveryStatus,
    pub attempts: i32,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub last_attempt_at: Option<OffsetDateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_code: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Attempts, oldest first; only when a single delivery is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Vec<AttemptView>>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// One attempt of a delivery.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeliveryAttempt)]
pub(crate) struct AttemptView {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Attempt number, starting at 1; starts at 1 again after a redelivery.
    pub number: i32,
    /// Absent if the receiver did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_code: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub duration_ms: i32,
}

/// Body of a delivery.
// Camel case, unlike the rest of the API, because the published client expects it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebhookPayload<'a> {
    /// Type of the event.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// Session of the event; null for an event of the organization.
    #[schema(required)]
    pub session_id: Option<SessionId>,
    pub event_id: EventId,
    /// Metadata of the session, unchanged.
    pub metadata: &'a Map<String, Value>,
    /// The event as the API returns it.
    #[schema(value_type = Object)]
    pub event: &'a RawValue,
}
