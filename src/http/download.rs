//! Downloads: lines of JSON, and bytes that callers uploaded.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

/// Builds a response with lines of JSON, as a download that browsers do not execute.
pub(super) fn ndjson(body: Body, name: &str) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    let place = format!("attachment; filename=\"{name}\"");
    if let Ok(place) = HeaderValue::from_str(&place) {
        headers.insert(header::CONTENT_DISPOSITION, place);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    response
}

/// Builds a response with bytes that a caller uploaded. A browser must not show them as a page of this origin.
pub(super) fn attachment(media_type: &'static str, bytes: u64, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_LENGTH, HeaderValue::from(bytes)),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, body).into_response()
}
