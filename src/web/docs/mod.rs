//! `/docs`: the pages of `docs/` and the reference of every operation, as HTML.
//!
//! Rendered here, from the Markdown and the API description that are part of the
//! binary: no script, no font, nothing from elsewhere, so the dashboard's own strict
//! policy holds. Called by the router of `web`; the description is handed in by `app`.

mod html;
mod markdown;
mod pages;
mod reference;

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::Path,
    response::{IntoResponse, Response},
    routing::get,
};
use utoipa::openapi::OpenApi;

use super::{missing, with_headers};
use html::{PageLink, frame};

/// One file for all pages; light and dark, narrow and wide.
const STYLE: &str = include_str!("style.css");
/// Pages change with the binary: a browser asks again.
const CACHE: &str = "no-cache";

/// What was rendered from the description, by its address.
type Rendered = Arc<BTreeMap<String, String>>;

/// The pages, and the description itself as YAML.
pub(super) fn router<S: Clone + Send + Sync + 'static>(description: &OpenApi) -> Router<S> {
    let yaml: Arc<str> = description.to_yaml().expect("the description is plain data").into();
    let json = serde_json::to_value(description).expect("the description is plain data");
    let reference: Rendered = Arc::new(reference::pages(&json));
    Router::new()
        .route("/docs", get(async || page("docs/README.md")))
        .route("/docs/", get(async || page("docs/README.md")))
        .route(
            "/docs/style.css",
            get(async || with_headers(STYLE.into_response(), "text/css; charset=utf-8", CACHE)),
        )
        .route(
            "/docs/openapi.yaml",
            get(async move || with_headers(yaml.to_string().into_response(), "application/yaml", CACHE)),
        )
        .route("/docs/{*page}", get(async move |Path(name): Path<String>| named(&reference, &name)))
}

/// The page of an address below `/docs/`: of the reference, or of a file.
fn named(reference: &Rendered, name: &str) -> Response {
    match reference.get(name) {
        Some(rendered) => answer(rendered.clone()),
        None if name == "readme" => page("README.md"),
        // The index has one address.
        None if name == "README" => missing(),
        None => page(&format!("docs/{name}.md")),
    }
}

/// A page from its file, named as in the repository.
fn page(file: &str) -> Response {
    let Some(text) = pages::text(file) else { return missing() };
    let written = markdown::page(&text, file);
    let place = PageLink { address: &pages::address(file).unwrap_or_default(), title: &written.title };
    answer(frame(&place, &written.html))
}

fn answer(html: String) -> Response {
    with_headers(html.into_response(), "text/html; charset=utf-8", CACHE)
}
