//! The document without its paths: title, tags, schemas of events, ways to authenticate.

use utoipa::{
    Modify, OpenApi,
    openapi::{
        SecurityRequirement,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::{
    domain::{Body, Notice, NoticeBody},
    http::sessions::events::StreamMode,
    wire::{
        ErrorBody, ErrorType, delta::DeltaView, error::ErrorDetail, listing::ListedFrame,
        operation::ExecFrame, webhook::WebhookPayload,
    },
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sojourn",
        description = "Durable agent sessions. A program creates a session with one request; an agent works on it \
                       for minutes or months; its append-only log is what persists.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "The server of this document")),
    tags(
        (name = "sessions", description = "Create, follow, steer and end sessions."),
        (name = "events", description = "The log of a session: pages, streams, single events."),
        (name = "actions", description = "What turns need from callers, and the results of custom tools."),
        (name = "turns", description = "Turns, steps and results of a session."),
        (name = "agents", description = "Prompt, model and tools of sessions, in immutable revisions."),
        (name = "credentials", description = "Provider keys, sealed at rest."),
        (name = "environments", description = "Image, packages, network policy and secrets of sandboxes."),
        (name = "sandbox", description = "Run commands and access files in a session's sandbox."),
        (name = "schedules", description = "Cron schedules of an agent and their runs."),
        (name = "files", description = "Stored files for messages, models and sandboxes."),
        (name = "skills", description = "Folders with instructions that agents read when a task needs them."),
        (name = "triggers", description = "Inbound webhooks that start sessions of an agent."),
        (name = "webhooks", description = "Webhooks, destinations and deliveries of events."),
        (name = "keys", description = "API keys with scopes and an expiration."),
        (name = "organization", description = "Settings and audit log of the organization."),
        (name = "admin", description = "Manage organizations; requires the operator's key."),
        (name = "usage", description = "Usage, prices, budgets and capacity."),
        (name = "service", description = "Liveness and readiness of the service."),
    ),
    components(schemas(
        ErrorBody, ErrorDetail, ErrorType, StreamMode, Body, Notice, NoticeBody, DeltaView, ExecFrame, ListedFrame,
        WebhookPayload,
    )),
    modifiers(&Security),
)]
struct Head;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key; where the operation says so, also a session's client token or an agent's invoke token."))
            .build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let header = ApiKey::Header(ApiKeyValue::with_description("X-API-Key", "An API key."));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(header));
        let operator = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The operator's key, SOJOURN_OPERATOR_KEY; no API key is accepted."))
            .build();
        components.add_security_scheme("operator", SecurityScheme::Http(operator));
        document.security = Some(vec![
            SecurityRequirement::new("bearer", Vec::<String>::new()),
            SecurityRequirement::new("api_key", Vec::<String>::new()),
        ]);
    }
}

/// Builds the document without its paths.
pub(crate) fn header() -> utoipa::openapi::OpenApi {
    Head::openapi()
}
