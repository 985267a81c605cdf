//! The HTTP API: routes, extractors, and handlers.
//!
//! Handlers contain no rules: `domain` decides what a session may do, called through `journal`. Handlers do
//! not call workers. Status codes exist only in this module.

mod admin;
mod agents;
mod auth;
mod body;
mod credentials;
mod deliveries;
mod destinations;
mod environments;
mod error;
mod events;
mod health;
mod idempotency;
mod keys;
pub mod metrics;
mod middleware;
mod openapi;
mod organization;
mod page;
mod path;
mod rate;
mod schedules;
mod serve;
mod sessions;
mod socket;
mod sources;
mod tokens;
mod triggers;
mod turns;
mod usage;
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
            creations: CreationCommitter::new(parts.journal.clone()),
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
    let v3 = agent_routes().merge(session_routes()).merge(organization_routes());
    OpenApiRouter::with_openapi(openapi::header())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .nest("/v3", v3)
}

/// Routes of agents and of what starts their sessions.
fn agent_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(agents::create, agents::list))
        .routes(routes!(agents::get, agents::patch, agents::delete))
        .routes(routes!(agents::revisions))
        .routes(routes!(agents::activate))
        .routes(routes!(schedules::create, schedules::list))
        .routes(routes!(schedules::get, schedules::patch, schedules::delete))
        .routes(routes!(schedules::fire))
        .routes(routes!(schedules::runs))
        .routes(routes!(triggers::create, triggers::list))
        .routes(routes!(triggers::get, triggers::patch, triggers::delete))
        .routes(routes!(triggers::rotate))
        .routes(routes!(triggers::inbound::receive))
        .routes(routes!(credentials::create, credentials::list))
        .routes(routes!(credentials::get, credentials::rotate, credentials::delete))
        .routes(routes!(credentials::set_default))
        .routes(routes!(environments::create, environments::list))
        .routes(routes!(environments::get, environments::patch, environments::delete))
        .routes(routes!(environments::build))
}

/// Routes of sessions.
fn session_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::create::create, sessions::list::list))
        .routes(routes!(sessions::get, sessions::patch, sessions::export::delete))
        .routes(routes!(sessions::export::export))
        .routes(routes!(sessions::export::import))
        .routes(routes!(sessions::usage))
        .routes(routes!(sources::list))
        .routes(routes!(sessions::steer::steer, events::messages))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(socket::connect))
        .routes(routes!(events::get))
        .routes(routes!(events::content))
        .routes(routes!(turns::result))
        .routes(routes!(turns::list))
        .routes(routes!(turns::get))
        .routes(routes!(turns::steps))
        .routes(routes!(sessions::cancel))
        .routes(routes!(sessions::heartbeat))
        .merge(sandbox_routes())
        .routes(routes!(sessions::archive))
        .routes(routes!(tokens::mint))
        .routes(routes!(destinations::create, destinations::list))
        .routes(routes!(destinations::get, destinations::patch, destinations::delete))
        .routes(routes!(destinations::rotate))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::get))
        .routes(routes!(deliveries::redeliver))
}

/// Routes of keys, organizations, usage and webhooks.
fn organization_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::get, keys::revoke))
        .routes(routes!(keys::rotate))
        .routes(routes!(admin::create, admin::list))
        .routes(routes!(admin::get, admin::patch, admin::delete))
        .routes(routes!(admin::suspend))
        .routes(routes!(admin::resume))
        .routes(routes!(admin::top_up, admin::set_balance))
        .routes(routes!(admin::set_prices))
        .routes(routes!(organization::get, organization::patch))
        .routes(routes!(organization::audit))
        .routes(routes!(organization::export))
        .routes(routes!(usage::usage))
        .routes(routes!(usage::budget, usage::patch_budget))
        .routes(routes!(usage::prices))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::get, webhooks::patch, webhooks::delete))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::delivery))
        .routes(routes!(webhooks::redeliver))
}

/// Routes of a session's sandbox.
fn sandbox_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::checkpoints::create, sessions::checkpoints::list))
        .routes(routes!(sessions::checkpoints::restore))
        .routes(routes!(sessions::control::start))
        .routes(routes!(sessions::control::stop))
        .routes(routes!(sessions::control::pause))
        .routes(routes!(sessions::control::resume))
        .routes(routes!(sessions::control::wake))
        .routes(routes!(sessions::control::reattach))
        .routes(routes!(sessions::context::get, sessions::context::patch))
        .routes(routes!(sessions::context::register, sessions::context::tools))
        .routes(routes!(sessions::execs::create))
        .routes(routes!(sessions::execs::get))
        .routes(routes!(sessions::execs::kill))
        .routes(routes!(sessions::files::read, sessions::files::write))
        .routes(routes!(sessions::files::list))
        .routes(routes!(sessions::archives::read, sessions::archives::write))
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
