//! One event as a request to one destination: body, headers, signature.
//!
//! Called by `worker` for each try; calls `sign`. The body of a try is the body
//! of every try: an event never changes, and only the timestamp and with it the
//! signature are new.

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use url::Url;

use super::sign::{Secret, sign};
use crate::{
    base::Timestamp,
    domain::{DeliveryId, EventId, SessionId},
};

const PRODUCT: &str = concat!("sojourn/", env!("CARGO_PKG_VERSION"));
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Where the published client reads the id of the delivery.
const DELIVERY: HeaderName = HeaderName::from_static("x-oc-delivery-id");

/// What a delivery is written from.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    pub url: &'a Url,
    /// One per destination and event; the same over all tries.
    pub delivery: DeliveryId,
    /// None for a notice about the organization.
    pub session: Option<SessionId>,
    /// The session's, verbatim.
    pub metadata: &'a Map<String, Value>,
    pub event_id: EventId,
    /// As in `turn.completed`.
    pub event_type: &'a str,
    /// The event in its wire form, without `raw` unless the destination has it.
    pub event: &'a RawValue,
    /// The destination's: one, or two while it is being replaced.
    pub secrets: &'a [Secret],
    /// The time of this try; receivers refuse deliveries of more than 5 minutes.
    pub at: Timestamp,
}

/// A signed request, ready to be sent once.
#[derive(Clone, Debug)]
pub struct SignedRequest {
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: Timestamp,
}

// Camel case, unlike the rest of the wire: the published client reads it so.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    r#type: &'a str,
    session_id: Option<SessionId>,
    event_id: EventId,
    metadata: &'a Map<String, Value>,
    event: &'a RawValue,
}

impl SignedRequest {
    /// Writes and signs.
    pub fn write(parts: Parts<'_>) -> Self {
        let envelope = Envelope {
            r#type: parts.event_type,
            session_id: parts.session,
            event_id: parts.event_id,
            metadata: parts.metadata,
            event: parts.event,
        };
        let body = Bytes::from(serde_json::to_vec(&envelope).expect("keys are strings, values are JSON"));
        let id = parts.delivery.to_string();
        let timestamp = parts.at.unix_timestamp();
        let signature = sign(parts.secrets, &id, timestamp, &body);
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (USER_AGENT, HeaderValue::from_static(PRODUCT)),
            (ID, ascii(&id)),
            (TIMESTAMP, HeaderValue::from(timestamp)),
            (SIGNATURE, ascii(&signature)),
            (DELIVERY, ascii(&id)),
        ]);
        Self { url: parts.url.clone(), headers, body, at: parts.at }
    }
}

fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("ids and base64 are printable ASCII")
}
