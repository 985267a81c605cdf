//! `/docs`: the pages of `docs/` and the reference of every operation, as HTML.
//!
//! Rendered from the Markdown and the API description in the binary, without scripts, fonts or external
//! resources, so the dashboard's content security policy applies unchanged. Called by the router of `web`;
//! `app` passes the description.

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

use super::response::{missing, with_headers};
use html::{PageLink, frame};

/// Style sheet of all pages.
const STYLE: &str = include_str!("style.css");
/// Pages change with the binary, so a browser must revalidate them.
const CACHE: &str = "no-cache";

/// Rendered pages of the reference, by address.
type Rendered = Arc<BTreeMap<String, String>>;

/// Routes of the pages, and of the API description as YAML.
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

/// Page of an address below `/docs/`: of the reference, or of a file.
fn named(reference: &Rendered, name: &str) -> Response {
    match reference.get(name) {
        Some(rendered) => answer(rendered.clone()),
        None if name == "readme" => page("README.md"),
        // The index is only served as `/docs`.
        None if name == "README" => missing(),
        None => page(&format!("docs/{name}.md")),
    }
}

/// Renders a page from its file, given by its path in the repository.
fn page(file: &str) -> Response {
    let Some(text) = pages::text(file) else { return missing() };
    let written = markdown::page(&text, file);
    let place = PageLink { address: &pages::address(file).unwrap_or_default(), title: &written.title };
    answer(frame(&place, &written.html))
}

fn answer(html: String) -> Response {
    with_headers(html.into_response(), "text/html; charset=utf-8", CACHE)
}
