//! Signed request for one event and one destination: body, headers, signature.
//!
//! Called by the dispatcher for each attempt; calls `sign`. The body is the same in every attempt because
//! an event never changes; only the timestamp and the signature differ.

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use serde_json::{Map, Value, value::RawValue};
use url::Url;

use super::sign::{Secret, sign};
use crate::{
    base::Timestamp,
    domain::{DeliveryId, EventId, SessionId},
    wire::webhook::WebhookPayload,
};

const PRODUCT: &str = concat!("sojourn/", env!("CARGO_PKG_VERSION"));
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Header in which the published client reads the id of the delivery.
const DELIVERY: HeaderName = HeaderName::from_static("x-oc-delivery-id");

/// Inputs of a signed request.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    pub url: &'a Url,
    /// One per destination and event; the same for all attempts.
    pub delivery: DeliveryId,
    /// `None` for a notice about the organization.
    pub session: Option<SessionId>,
    /// Metadata of the session, unchanged.
    pub metadata: &'a Map<String, Value>,
    pub event_id: EventId,
    /// Event type, for example `turn.completed`.
    pub event_type: &'a str,
    /// The event in its wire form; contains `raw` only if the destination includes it.
    pub event: &'a RawValue,
    /// Secrets of the destination: one, or two during a rotation.
    pub secrets: &'a [Secret],
    /// Time of this attempt; receivers reject deliveries older than 5 minutes.
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

impl SignedRequest {
    /// Serializes the envelope and signs it.
    pub fn write(parts: Parts<'_>) -> Self {
        let payload = WebhookPayload {
            kind: parts.event_type,
            session_id: parts.session,
            event_id: parts.event_id,
            metadata: parts.metadata,
            event: parts.event,
        };
        let body = Bytes::from(serde_json::to_vec(&payload).expect("keys are strings, values are JSON"));
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
