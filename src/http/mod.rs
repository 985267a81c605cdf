//! The HTTP API: routes, extractors, and handlers.
//!
//! Handlers contain no rules: `domain` decides what a session may do, called through `journal`. Handlers do
//! not call workers. Status codes exist only in this module.

mod agents;
mod auth;
mod body;
mod download;
mod error;
mod health;
mod idempotency;
pub mod metrics;
mod middleware;
mod openapi;
mod organization;
mod page;
mod path;
mod prelude;
mod rate;
mod serve;
mod sessions;
mod triggers;
mod webhooks;
mod write_timeout;

use std::sync::Arc;

use axum::Router;
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer},
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub use error::status;
pub use openapi::{description, document};
pub use serve::serve;

use crate::{
    base::limit::{ARCHIVES_MAX, IMPORTS_MAX, ORGANIZATION_RATE_FACTOR, TRIGGER_MESSAGES_PER_SECOND},
    base::seal::sha256,
    blob::Blobs,
    domain::rootfs::RootFs,
    journal::{CreationCommitter, Journal},
    model::ModelName,
    net,
    store::Store,
    stream::Streams,
    trigger,
};

/// State of the handlers. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    store: Store,
    journal: Journal,
    creations: CreationCommitter<idempotency::Answer, error::ApiError>,
    blobs: Blobs,
    streams: Streams,
    webhooks: net::Client,
    models: net::Client,
    /// Whether agents may use `scripted/...` models.
    scripted: bool,
    local_sources: net::LocalDirectories,
    images: Images,
    keys: auth::KeyCache,
    rates: rate::Rates,
    organization_rates: rate::Rates,
    trigger_rates: rate::Rates,
    imports: tokio::sync::Semaphore,
    archives: tokio::sync::Semaphore,
    /// SHA-256 of the operator's key.
    operator: Option<[u8; 32]>,
}

/// The images that environments may use.
#[derive(Clone)]
pub struct Images {
    /// Image of an environment that names none.
    pub default: String,
    /// Returns the reason if a root file system is unavailable.
    pub refuse: Arc<Refuse>,
}

/// Returns the reason if a root file system is unavailable.
pub type Refuse = dyn Fn(&RootFs) -> Option<RootFsUnavailable> + Send + Sync;

/// Reason why a root file system is unavailable in this deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootFsUnavailable {
    UnknownImage,
    /// Packages cannot be installed; contains the remedy.
    Packages(&'static str),
}

/// Dependencies passed by the composition root.
pub struct Parts {
    pub store: Store,
    pub journal: Journal,
    pub blobs: Blobs,
    pub streams: Streams,
    /// Clients that check which addresses an organization may use for webhooks and for models.
    pub webhooks: net::Client,
    pub models: net::Client,
    pub scripted: bool,
    /// Local directories whose repositories may be cloned.
    pub local_sources: net::LocalDirectories,
    pub images: Images,
    /// Sustained requests per second of one key.
    pub requests_per_second: u32,
    /// Grants access to `/v3/admin`; without it the admin API is disabled.
    pub operator_key: Option<String>,
}

impl App {
    /// Builds the API from its parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            store: parts.store,
            creations: CreationCommitter::new(parts.journal.clone(), idempotency::Answer::stored),
            journal: parts.journal,
            blobs: parts.blobs,
            streams: parts.streams,
            webhooks: parts.webhooks,
            models: parts.models,
            scripted: parts.scripted,
            local_sources: parts.local_sources,
            images: parts.images,
            keys: auth::KeyCache::default(),
            rates: rate::Rates::new(parts.requests_per_second),
            organization_rates: rate::Rates::new(
                parts.requests_per_second.saturating_mul(ORGANIZATION_RATE_FACTOR),
            ),
            trigger_rates: rate::Rates::new(TRIGGER_MESSAGES_PER_SECOND),
            imports: tokio::sync::Semaphore::new(IMPORTS_MAX),
            archives: tokio::sync::Semaphore::new(ARCHIVES_MAX),
            operator: parts.operator_key.map(|key| sha256(key.as_bytes())),
        }))
    }

    /// Parses a model name and checks that it may be used in this deployment.
    fn check_model(&self, model: &str) -> Result<ModelName, error::ApiError> {
        trigger::check_model(model, self.0.scripted)
            .map_err(|reason| error::ApiError::invalid("model", reason))
    }

    /// Builds the router: all routes with their middleware, and the pages `extra_routes` them.
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
