//! The description of the API, emitted from the routes themselves.

use utoipa::{
    IntoResponses, Modify, OpenApi,
    openapi::{
        SecurityRequirement,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::wire::ErrorBody;

/// What every operation may answer besides its success.
#[derive(IntoResponses)]
#[allow(dead_code)] // read by the derive only
pub enum Errors {
    /// The request was not done; `error.type` says why.
    #[response(status = "4XX")]
    Client(#[to_schema] ErrorBody),
    /// The service could not do it; a 503 says when to try again.
    #[response(status = "5XX")]
    Server(#[to_schema] ErrorBody),
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sojourn",
        description = "Durable agent sessions. A program creates a session with one request; an agent works on it \
                       for minutes or months; its append-only log is what persists.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "Where this document came from")),
    tags(
        (name = "sessions", description = "Create, follow, steer and end sessions."),
        (name = "events", description = "The log of a session: pages, streams, single events."),
        (name = "turns", description = "What the agent did with its input, turn by turn."),
        (name = "agents", description = "What a session runs: prompt, model, tools, in immutable revisions."),
        (name = "credentials", description = "Provider keys, sealed at rest."),
        (name = "webhooks", description = "Where events are sent, and what became of each."),
        (name = "service", description = "Whether the service is alive and ready."),
    ),
    modifiers(&Security),
)]
struct Header;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key, or a session's client token where the operation says so."))
            .build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let header = ApiKey::Header(ApiKeyValue::with_description("X-API-Key", "An API key."));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(header));
        document.security = Some(vec![
            SecurityRequirement::new("bearer", Vec::<String>::new()),
            SecurityRequirement::new("api_key", Vec::<String>::new()),
        ]);
    }
}

/// The document without its paths.
pub(super) fn header() -> utoipa::openapi::OpenApi {
    Header::openapi()
}

/// The whole document as YAML: what `openapi.yaml` must be.
pub fn document() -> String {
    let (_, document) = super::routes_and_document().split_for_parts();
    document.to_yaml().expect("the document is plain data")
}
