//! The dashboard: its page and its assets, compressed if the browser accepts it.

use std::borrow::Cow;

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::{EmbeddedFile, RustEmbed};

use super::response::{missing, with_headers};

/// Contains only a `.gitignore` if `scripts/dashboard` was not run before cargo.
#[derive(RustEmbed)]
#[folder = "web/dist"]
struct Built;

/// Page that replaces a dashboard that was not built.
const NOT_BUILT: &str = include_str!("not-built.html");

/// Routes of the dashboard.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(page)).route("/assets/{file}", get(asset))
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
