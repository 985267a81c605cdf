//! Destinations and deliveries on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::{DeliveryId, DestinationId, EventId, Level, SessionId};

/// A destination to create.
#[derive(Clone, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateDestination {
    /// https, and an address that everyone can reach.
    #[garde(length(bytes, min = 1, max = 2_048))]
    pub url: String,
    /// Signing secret; one is made when absent.
    #[garde(inner(length(bytes, min = 8, max = 256)))]
    pub secret: Option<String>,
    /// Events up to this level are sent; `user` when absent.
    #[garde(skip)]
    pub level: Option<Level>,
    /// Exact types or `prefix.*`; absent for all.
    #[garde(inner(length(max = 64), inner(length(bytes, min = 1, max = 64))))]
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
    #[garde(inner(length(bytes, min = 1, max = 2_048)))]
    pub url: Option<String>,
    #[garde(inner(length(bytes, min = 8, max = 256)))]
    pub secret: Option<String>,
    #[garde(skip)]
    pub level: Option<Level>,
    /// Null for all types.
    #[garde(inner(inner(length(max = 64), inner(length(bytes, min = 1, max = 64)))))]
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
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
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
    pub session: SessionId,
    pub destination: DestinationId,
    pub event_id: EventId,
    pub event_seq: i64,
    pub status: DeliveryStatus,
    pub attempts: i32,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub last_attempt_at: Option<OffsetDateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_code: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}
