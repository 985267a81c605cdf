//! The whole document: the routes, completed with what holds for every operation.

use utoipa::{
    PartialSchema,
    openapi::{
        Header, Ref, RefOr, Required, Schema, SecurityRequirement,
        path::{Operation, Parameter, ParameterBuilder, ParameterIn},
        response::{Response, ResponseBuilder},
        schema::ArrayItems,
    },
};

use super::{
    constraints, events, examples,
    refusals::{self, Method},
};
use crate::http::routes_and_document;

/// Returns the whole document as YAML, the content of `openapi.yaml`.
pub fn document() -> String {
    description().to_yaml().expect("the document is plain data")
}

/// Builds the whole document.
pub fn description() -> utoipa::openapi::OpenApi {
    let (_, mut document) = routes_and_document().split_for_parts();
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
        if is_post {
            add_replay(operation);
        }
        complete(operation, is_open);
        accept_names(operation);
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
                // Shared component: the response is the same for every operation.
                let one = || refusals::response(&error, description).into();
                components.responses.entry(name.to_owned()).or_insert_with(one);
                let place = Ref::from_response_name(name).into();
                operation.responses.responses.insert(status.to_owned(), place);
            }
        }
    }
    events::add(&mut document);
    constraints::add(&mut document);
    examples::add(&mut document);
    document
}

/// Returns the scope that an operation needs, from the resource in its path and from whether it reads. A
/// test calls every operation with and without this scope.
fn scope(path: &str, method: Method) -> String {
    let mut segments = path.trim_start_matches("/v3/").split('/');
    let group = match (segments.next().unwrap_or_default(), segments.nth(1)) {
        // Budget, prices and capacity share the scope of usage.
        ("budget" | "prices" | "capacity", _) => "usage",
        // Schedules and triggers have scopes of their own; an invoke token is a way to start sessions
        // without an API key, like a trigger.
        ("agents", Some("schedules")) => "schedules",
        ("agents", Some("hooks" | "invoke-tokens")) => "triggers",
        ("agents", Some("invoke")) => "sessions",
        // Actions are of sessions.
        ("pending", _) => "sessions",
        // The prompt is configuration of the agent.
        ("sessions", Some("agent")) => "agents",
        (group, _) => group,
    };
    let verb = match method {
        Method::Read => "read",
        // To end a grant is to decide on calls.
        _ if path.contains("/permissions/") => "approve",
        _ => "write",
    };
    format!("{group}:{verb}")
}

fn needs(scope: &str) -> Vec<SecurityRequirement> {
    ["bearer", "api_key"].map(|scheme| SecurityRequirement::new(scheme, [scope])).into()
}

/// Operations with an optional body: every field has a default.
const OPTIONAL_BODIES: [&str; 10] = [
    "archiveSession",
    "cancelSession",
    "killExec",
    "mintClientToken",
    "rotateDestinationSecret",
    "rotateTriggerSecret",
    "rotateKey",
    "rotateWebhookSecret",
    "stopSession",
    "writeFile",
];

/// Headers of every response to a caller whose key was accepted.
const HEADERS: [(&str, &str); 4] = [
    ("X-Request-Id", "Id of this request in the service's logs."),
    ("RateLimit-Limit", "Size of the request burst that this key may make."),
    ("RateLimit-Remaining", "Remaining requests of the burst."),
    ("RateLimit-Reset", "Seconds until the whole burst is available again."),
];

fn schema_of(header: &str) -> RefOr<Schema> {
    if header == "X-Request-Id" { String::schema() } else { u64::schema() }
}

/// Adds the headers of success responses to an operation.
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

/// Adds the response of a replayed create: the body of the first response, with 200.
fn add_replay(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    if responses.contains_key("200") {
        return;
    }
    if let Some(RefOr::T(created)) = responses.get("201").cloned() {
        let replay =
            ResponseBuilder::from(created).description("The repeated request of this `Idempotency-Key`.");
        responses.insert("200".to_owned(), replay.build().into());
    }
}

/// Path parameters that accept a name in place of the id.
const NAMED: [(&str, &str); 4] = [
    ("agent_id", "Id or name of the agent."),
    ("credential_id", "Id of the credential, or its name while no other credential has it."),
    ("environment_id", "Id or name of the environment."),
    ("session_id", "Id of the session, or its slug while it is not archived."),
];

/// Describes the path parameters that `path::Path` resolves: any text, not only an id.
fn accept_names(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let named = NAMED.iter().find(|(name, _)| *name == parameter.name);
        if let (ParameterIn::Path, Some((_, description))) = (&parameter.parameter_in, named) {
            parameter.description = Some((*description).to_owned());
            parameter.schema = Some(String::schema());
        }
    }
}

fn idempotency_key() -> Parameter {
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "Stored for 24 hours: a repetition gets the same response, with `Idempotency-Replayed: true` and 200 \
             in place of 201; \
             a different request with the same key gets 422.",
        ))
        .schema(Some(constraints::idempotency_key()))
        .build()
}

/// Default description of a success response.
fn meaning(class: &str) -> &'static str {
    match class {
        "200" => "Success.",
        "201" => "Created.",
        "202" => "Accepted; processing continues in the background.",
        "204" => "Done; the response has no body.",
        _ => "Done.",
    }
}
