//! The description of the API, emitted from the routes themselves.

mod refusals;

use std::collections::BTreeMap;

use utoipa::{
    IntoResponses, Modify, OpenApi, PartialSchema,
    openapi::{
        Header, Ref, RefOr, Required, Schema, SecurityRequirement,
        content::ContentBuilder,
        path::{Operation, Parameter, ParameterBuilder, ParameterIn},
        response::{Response, ResponseBuilder},
        schema::ArrayItems,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use super::events::StreamMode;
use crate::wire::{ErrorBody, ErrorType, error::ErrorDetail};

/// What an operation may answer besides its success; which statuses these are, is known
/// from what it takes.
pub struct Errors;

impl IntoResponses for Errors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response = ResponseBuilder::new().content("application/json", content).build();
        BTreeMap::from([("ERROR".to_owned(), response.into())])
    }
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
        (name = "environments", description = "What a session's sandbox is, and what it may reach."),
        (name = "sandbox", description = "Commands and files of a session's sandbox, past its agent."),
        (name = "schedules", description = "What an agent does at stated times, and what became of it."),
        (name = "triggers", description = "Where others start sessions of an agent, by a signed message."),
        (name = "webhooks", description = "Where events are sent, and what became of each."),
        (name = "keys", description = "Who may call: API keys with scopes and an end."),
        (name = "organization", description = "Settings of the organization, and what was done to it."),
        (name = "admin", description = "Organizations, for whoever runs the service; opened by the operator's key."),
        (name = "usage", description = "What was used, what it costs, and what may be spent."),
        (name = "service", description = "Whether the service is alive and ready."),
    ),
    components(schemas(ErrorBody, ErrorDetail, ErrorType, StreamMode)),
    modifiers(&Security),
)]
struct Head;

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

/// The document without its paths.
pub(super) fn header() -> utoipa::openapi::OpenApi {
    Head::openapi()
}

/// The whole document as YAML: what `openapi.yaml` must be.
pub fn document() -> String {
    description().to_yaml().expect("the document is plain data")
}

/// The whole document.
pub fn description() -> utoipa::openapi::OpenApi {
    let (_, mut document) = super::routes_and_document().split_for_parts();
    let components = document.components.get_or_insert_default();
    for (name, text) in HEADERS {
        let mut header = Header::new(schema_of(name));
        header.description = Some(text.to_owned());
        components.headers.insert(name.to_owned(), header.into());
    }
    for (name, page) in &mut components.schemas {
        let (Some(row), RefOr::T(Schema::Object(page))) = (name.strip_prefix("Page_"), page) else {
            continue;
        };
        if let Some(RefOr::T(Schema::Array(rows))) = page.properties.get_mut("data") {
            rows.items = ArrayItems::RefOrSchema(Box::new(Ref::from_schema_name(row).into()));
        }
    }
    let operations = document.paths.paths.iter_mut().flat_map(|(path, item)| {
        let of = |method: Method| move |operation| (path.as_str(), method, operation);
        let reads = item.get.as_mut().map(of(Method::Read));
        let posts = item.post.as_mut().map(of(Method::Post));
        let others = [&mut item.put, &mut item.patch, &mut item.delete];
        let others = others.into_iter().filter_map(|other| other.as_mut()).map(of(Method::Write));
        reads.into_iter().chain(others).chain(posts).collect::<Vec<_>>()
    });
    for (path, method, operation) in operations {
        let is_post = method == Method::Post;
        let is_open = operation.security.is_some();
        complete(operation, is_open);
        if !is_open {
            operation.security = Some(needs(&scope(path, method)));
        }
        if let Some(RefOr::T(body)) = &mut operation.request_body
            && OPTIONAL_BODIES.contains(&operation.operation_id.as_deref().unwrap_or_default())
        {
            body.required = Some(Required::False);
        }
        let only_looks = operation.operation_id.as_deref() == Some("reattachSession");
        if is_post && !only_looks {
            operation.parameters.get_or_insert_default().push(idempotency_key().into());
        }
        let answers = &mut operation.responses.responses;
        for (class, response) in &mut *answers {
            if let RefOr::T(plain) = response
                && plain.description.is_empty()
            {
                plain.description = meaning(class).to_owned();
            }
        }
        if let Some(RefOr::T(error)) = answers.remove("ERROR") {
            for (status, name, description) in refusals::of(operation, path, method) {
                // Said once: it is the same everywhere.
                let one = || refusals::response(&error, description).into();
                components.responses.entry(name.to_owned()).or_insert_with(one);
                let place = Ref::from_response_name(name).into();
                operation.responses.responses.insert(status.to_owned(), place);
            }
        }
    }
    document
}

/// What an operation does, as far as its answers and scopes depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Read,
    Post,
    Write,
}

/// The scope that an operation needs: its first segment says of what, its method
/// whether it reads. The test of every operation as everyone holds this to the truth.
fn scope(path: &str, method: Method) -> String {
    let mut segments = path.trim_start_matches("/v3/").split('/');
    let group = match (segments.next().unwrap_or_default(), segments.nth(1)) {
        // What may be spent and what things cost belong to what was used.
        ("budget" | "prices", _) => "usage",
        // What starts an agent is not the agent.
        ("agents", Some(group @ ("schedules" | "hooks"))) => group,
        (group, _) => group,
    };
    let verb = if method == Method::Read { "read" } else { "write" };
    format!("{group}:{verb}")
}

fn needs(scope: &str) -> Vec<SecurityRequirement> {
    ["bearer", "api_key"].map(|scheme| SecurityRequirement::new(scheme, [scope])).into()
}

/// Operations whose body may be left out: every field of it has a default.
const OPTIONAL_BODIES: [&str; 7] = [
    "mintClientToken",
    "rotateDestinationSecret",
    "rotateTriggerSecret",
    "rotateKey",
    "rotateWebhookSecret",
    "stopSession",
    "writeFile",
];

/// Headers of every answer to a caller whose key was accepted.
const HEADERS: [(&str, &str); 4] = [
    ("X-Request-Id", "Names this request in the service's logs."),
    ("RateLimit-Limit", "Requests that this key may make at once."),
    ("RateLimit-Remaining", "How many of these are left."),
    ("RateLimit-Reset", "Seconds until all are there again."),
];

fn schema_of(header: &str) -> RefOr<Schema> {
    if header == "X-Request-Id" { String::schema() } else { u64::schema() }
}

/// Writes the headers of its success into an operation.
fn complete(operation: &mut Operation, is_open: bool) {
    let successes = operation.responses.responses.iter_mut().filter(|(class, _)| class.starts_with('2'));
    for (_, response) in successes {
        let RefOr::T(Response { headers, .. }) = response else { continue };
        for (name, _) in HEADERS.iter().take(if is_open { 1 } else { HEADERS.len() }) {
            let place = Ref::new(format!("#/components/headers/{name}"));
            headers.insert((*name).to_owned(), RefOr::Ref(place));
        }
    }
}

fn idempotency_key() -> Parameter {
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "Kept for 24 hours: the same request again gives the same answer, with `Idempotency-Replayed: true`; \
             another request with the same key is 422.",
        ))
        .schema(Some(String::schema()))
        .build()
}

/// What a success means where the operation says no more.
fn meaning(class: &str) -> &'static str {
    match class {
        "200" => "As asked.",
        "201" => "It was created.",
        "202" => "It was accepted and will be done.",
        "204" => "It is done; there is nothing to say.",
        _ => "Done.",
    }
}
