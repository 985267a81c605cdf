//! The dashboard, embedded from the build output of `web/`, and the documentation; both are served beside the
//! API.
//!
//! The files are part of the binary; a debug build reads them from the source tree. They contain no secret
//! and need no key: their data comes from the API, with a key that the user enters. Everything is
//! same-origin, which the content security policy enforces.

mod docs;

use std::borrow::Cow;

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::{EmbeddedFile, RustEmbed};
use utoipa::openapi::OpenApi;

/// Contains only a `.gitignore` if `scripts/dashboard` was not run before cargo.
#[derive(RustEmbed)]
#[folder = "web/dist"]
struct Built;

/// Page that replaces a dashboard that was not built.
const NOT_BUILT: &str = include_str!("not-built.html");

/// Scripts, styles and fonts only from this origin and none inline; connections only to this origin; no
/// framing; no string may become markup or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Routes of the dashboard, the documentation and the API reference. All other paths belong to the API.
pub fn router<S: Clone + Send + Sync + 'static>(description: &OpenApi) -> Router<S> {
    let dashboard = Router::new().route("/", get(page)).route("/assets/{file}", get(asset));
    dashboard.merge(docs::router(description))
}

async fn page(asked: HeaderMap) -> Response {
    let Some(file) = Built::get("index.html") else {
        return with_headers(Body::from(NOT_BUILT).into_response(), "text/html; charset=utf-8", "no-store");
    };
    answer(&asked, "index.html", file, "no-cache")
}

/// Asset names contain a hash of the content, so they can be cached forever.
async fn asset(Path(name): Path<String>, asked: HeaderMap) -> Response {
    let path = format!("assets/{name}");
    let is_plain = !name.starts_with('.') && !name.contains(['/', '\\']);
    match is_plain.then(|| Built::get(&path)).flatten() {
        Some(file) => answer(&asked, &path, file, "public, max-age=31536000, immutable"),
        None => missing(),
    }
}

/// Empty 404; `http` adds the usual error body.
fn missing() -> Response {
    StatusCode::NOT_FOUND.into_response()
}

fn answer(asked: &HeaderMap, path: &str, file: EmbeddedFile, cache: &'static str) -> Response {
    let tag = tag(&file);
    if asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let packed = takes_gzip(asked).then(|| Built::get(&format!("{path}.gz"))).flatten();
    let is_packed = packed.is_some();
    let body = match packed.unwrap_or(file).data {
        Cow::Borrowed(bytes) => Body::from(bytes),
        Cow::Owned(bytes) => Body::from(bytes),
    };
    let mut response = with_headers(body.into_response(), media_type(path), cache);
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// A weak ETag: the compressed and the plain form are the same page.
fn tag(file: &EmbeddedFile) -> String {
    let hash = file.metadata.sha256_hash();
    let digits: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("W/\"{digits}\"")
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    let accepted =
        asked.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut codings = accepted.split(',').map(|coding| coding.trim().to_ascii_lowercase());
    codings.any(|coding| coding == "gzip" || (coding.starts_with("gzip;") && !coding.ends_with("q=0")))
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

fn with_headers(mut response: Response, media_type: &'static str, cache: &'static str) -> Response {
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
