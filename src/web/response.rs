//! Responses with the headers of every page.

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Scripts, styles and fonts only from this origin and none inline; connections only to this origin; no
/// framing; no string may become markup or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Empty 404; `http` adds the usual error body.
pub(super) fn missing() -> Response {
    StatusCode::NOT_FOUND.into_response()
}

/// Sets the headers of a page or an asset.
pub(super) fn with_headers(
    mut response: Response,
    media_type: &'static str,
    cache: &'static str,
) -> Response {
    let headers = response.headers_mut();
    let set = [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, cache),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in set {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
