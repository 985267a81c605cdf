//! The HTTP API: routes, extractors, and handlers.
//!
//! Handlers contain no rules: `domain` decides what a session may do, called through `journal`. Handlers do
//! not call workers. Status codes exist only in this module.

mod agents;
mod answer;
mod app;
mod auth;
mod body;
mod download;
mod error;
mod files;
mod health;
mod idempotency;
mod key_cache;
pub(crate) mod metrics;
mod middleware;
mod openapi;
mod organization;
mod page;
mod path;
mod prelude;
mod rate;
mod scope;
mod serve;
mod sessions;
mod skills;
mod triggers;
mod unauthenticated;
mod webhooks;
mod write_timeout;

use axum::Router;
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer},
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub use app::{App, Images, Parts, Refuse, RootFsUnavailable};
pub use error::status;
pub use openapi::{description, document};
pub use serve::serve;

impl App {
    /// Builds the router: all routes with their middleware, and `extra_routes`.
    ///
    /// Middleware from the outside in: request id and error format; CORS; panics become 500; limits on
    /// body size and time.
    pub fn router(self, extra_routes: Router<Self>) -> Router {
        let (router, _) = routes_and_document().split_for_parts();
        router
            .merge(extra_routes)
            .fallback(error::unknown_route)
            .method_not_allowed_fallback(error::wrong_method)
            .layer(axum::middleware::from_fn(middleware::limit_time))
            // `limit_body` limits every body by the size allowed for its route.
            .layer(axum::extract::DefaultBodyLimit::disable())
            .layer(axum::middleware::from_fn(middleware::limit_body))
            .layer(CatchPanicLayer::custom(error::panicked))
            .layer(cors())
            .layer(axum::middleware::from_fn_with_state(self.clone(), middleware::middleware))
            .with_state(self)
    }
}

/// Builds the routes and their OpenAPI document together.
fn routes_and_document() -> OpenApiRouter<App> {
    let v3 = agents::routes()
        .merge(triggers::routes())
        .merge(files::routes())
        .merge(skills::routes())
        .merge(sessions::routes())
        .merge(webhooks::routes())
        .merge(organization::routes());
    OpenApiRouter::with_openapi(openapi::header())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .nest("/v3", v3)
}

fn cors() -> CorsLayer {
    // Authentication uses no cookies, so every origin can be allowed: no site can send a user's credentials.
    CorsLayer::new()
        .allow_origin(AllowOrigin::any())
        .allow_methods(AllowMethods::list([
            axum::http::Method::GET,
            axum::http::Method::POST,
            axum::http::Method::PUT,
            axum::http::Method::PATCH,
            axum::http::Method::DELETE,
        ]))
        .allow_headers(AllowHeaders::list(
            [
                "authorization",
                "content-type",
                "idempotency-key",
                "last-event-id",
                "prefer",
                "range",
                "x-api-key",
                auth::CLIENT_HEADER,
            ]
            .map(axum::http::HeaderName::from_static),
        ))
        .expose_headers(
            [
                "x-request-id",
                "retry-after",
                "idempotency-replayed",
                "ratelimit-limit",
                "ratelimit-remaining",
                "ratelimit-reset",
            ]
            .map(axum::http::HeaderName::from_static),
        )
}
