//! Responses of handlers.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

/// Response of an idempotent write.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub body: Value,
    /// Field that is returned once: merged into the response, never stored.
    pub shown_once: Option<(&'static str, Value)>,
    /// True if an earlier request stored this response.
    pub replayed: bool,
}

impl Answer {
    /// Creates a response that may be stored.
    pub(super) fn new(status: StatusCode, body: &impl Serialize) -> Self {
        let body = serde_json::to_value(body).expect("response types serialize to JSON");
        Self { status, body, shown_once: None, replayed: false }
    }

    /// Returns the status and the body that are stored under the request's keys.
    pub(super) fn stored(&self) -> (u16, Vec<u8>) {
        (self.status.as_u16(), serde_json::to_vec(&self.body).expect("a JSON value serializes"))
    }
}

impl IntoResponse for Answer {
    fn into_response(mut self) -> Response {
        if let (Some((name, value)), Value::Object(body)) = (self.shown_once, &mut self.body) {
            body.insert(name.to_owned(), value);
        }
        let mut response = (self.status, axum::Json(self.body)).into_response();
        if self.replayed {
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
        }
        response
    }
}

/// Builds an empty 204 response.
pub(super) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// Builds a JSON response with `Cache-Control: no-store`.
pub(super) fn respond(body: &impl Serialize) -> Response {
    let mut response = axum::Json(body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
