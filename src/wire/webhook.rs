//! Destinations and deliveries on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{
        NET_URL_BYTES_MAX, WEBHOOK_OVERLAP_SECONDS, WEBHOOK_SECRET_BYTES_MAX, WORD_BYTES_MAX, WORDS_MAX,
    },
    domain::{DeliveryId, DestinationId, EventId, Level, SessionId, WebhookId},
};

/// A destination to create.
#[derive(Clone, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateDestination {
    /// https, and an address that everyone can reach.
    #[garde(length(bytes, min = 1, max = NET_URL_BYTES_MAX))]
    pub url: String,
    /// Signing secret; one is made when absent.
    #[garde(inner(length(bytes, min = 8, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    /// Events up to this level are sent; `user` when absent.
    #[garde(skip)]
    pub level: Option<Level>,
    /// Exact types or `prefix.*`; absent for all.
    #[garde(inner(length(max = WORDS_MAX), inner(length(bytes, min = 1, max = WORD_BYTES_MAX))))]
    pub types: Option<Vec<String>>,
    /// Whether the caller's `raw` travels with input events.
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

/// What may change of a destination; absent fields stay.
#[derive(Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchDestination {
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub url: Option<String>,
    #[garde(inner(length(bytes, min = 8, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    #[garde(skip)]
    pub level: Option<Level>,
    /// Null for all types.
    #[garde(inner(inner(length(max = WORDS_MAX), inner(length(bytes, min = 1, max = WORD_BYTES_MAX)))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Vec<String>>)]
    pub types: Option<Option<Vec<String>>>,
    #[garde(skip)]
    pub include_raw: Option<bool>,
    #[garde(skip)]
    pub enabled: Option<bool>,
}

/// Where a session's events are sent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Destination)]
pub struct DestinationView {
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
    /// The signing secret, in the answer that made it and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Events beyond this `seq` are sent.
    pub created_after_seq: i64,
    /// Why the service disabled it: `gone` (the receiver answered 410) or `failing`
    /// (no delivery was accepted for five days). Enabling it again clears this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// The first failure since the last success.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<OffsetDateTime>,
    /// Until when letters carry the signature of the replaced secret too.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub secret_before_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A webhook of the organization: it hears of every session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookView {
    pub id: WebhookId,
    pub url: String,
    /// Events of sessions up to this level are sent; `session.created`,
    /// `session.deleted`, `limit.*` and `webhook.disabled` at any.
    pub level: Level,
    #[schema(required)]
    pub types: Option<Vec<String>>,
    pub include_raw: bool,
    pub enabled: bool,
    pub has_secret: bool,
    /// The signing secret, in the answer that made it and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Why the service disabled it: `gone` (the receiver answered 410) or `failing`
    /// (no delivery was accepted for five days). Enabling it again clears this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// The first failure since the last success.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<OffsetDateTime>,
    /// Until when letters carry the signature of the replaced secret too.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub secret_before_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A secret that replaces the one before.
#[derive(Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RotateSecret {
    /// The new secret; one is made when absent.
    #[garde(inner(length(bytes, min = 8, max = WEBHOOK_SECRET_BYTES_MAX)))]
    pub secret: Option<String>,
    /// How long letters carry both signatures: 0 to 604800 seconds, default a day.
    #[garde(range(min = 0, max = WEBHOOK_OVERLAP_SECONDS.1))]
    #[schema(minimum = 0, maximum = 604800)]
    pub overlap_seconds: Option<i64>,
}

/// What became of a delivery so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// Waits to be sent.
    Pending,
    /// Is being sent.
    Delivering,
    /// The receiver took it.
    Delivered,
    /// The last try failed; there will be another.
    Failed,
    /// Every try failed.
    DeadLetter,
}

/// One event on its way to one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryView {
    pub id: DeliveryId,
    /// What it is about; absent for a notice about the organization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The session's destination that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<DestinationId>,
    /// The organization's webhook that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookId>,
    pub event_id: EventId,
    /// Where the event is in the session's log; absent for what is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_seq: Option<i64>,
    /// The event's type.
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
    /// Every try, oldest first; where one delivery is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Vec<AttemptView>>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// One try of a delivery.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeliveryAttempt)]
pub struct AttemptView {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// From 1; from 1 again when the delivery was sent again.
    pub number: i32,
    /// Absent when the receiver gave no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_code: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub duration_ms: i32,
}
