//! The dashboard, embedded from the build output of `web/`, and the documentation; both are served beside the
//! API.
//!
//! The files are part of the binary; a debug build reads them from the source tree. They contain no secret
//! and need no key: their data comes from the API, with a key that the user enters. Everything is
//! same-origin, which the content security policy enforces.

mod dashboard;
mod docs;
mod response;

use axum::Router;
use utoipa::openapi::OpenApi;

/// Routes of the dashboard, the documentation and the API reference. All other paths belong to the API.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(description: &OpenApi) -> Router<S> {
    dashboard::router().merge(docs::router(description))
}
