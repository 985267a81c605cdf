//! Events in the document: a schema for each type, the frames of streams, and the webhooks that deliver events.
//!
//! The schemas are those of `domain`, one for each variant of an enum. The examples are those of the pages in
//! `docs/events`.

use std::collections::BTreeMap;

use rust_embed::RustEmbed;
use serde_json::{Value, json};
use utoipa::{
    PartialSchema,
    openapi::{
        AllOfBuilder, Content, Discriminator, Object, ObjectBuilder, OneOf, OneOfBuilder, Paths, Ref, RefOr,
        Required, Response, Schema,
        content::ContentBuilder,
        example::ExampleBuilder,
        extensions::Extensions,
        path::{HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem},
        request_body::RequestBodyBuilder,
        response::{ResponseBuilder, ResponsesBuilder},
    },
};

/// Pages of event types; a debug build reads them from disk.
#[derive(RustEmbed)]
#[folder = "docs/events"]
#[include = "*.md"]
struct Pages;

type Schemas = BTreeMap<String, RefOr<Schema>>;

/// An event type and the name of its schema.
struct EventType {
    kind: String,
    schema: String,
    description: String,
}

/// Operations that stream, with the schema of one frame.
const STREAMS: [(&str, &str); 4] = [
    ("listSessions", "ListedFrame"),
    ("listEvents", "EventFrame"),
    ("streamEvents", "EventFrame"),
    ("getExec", "ExecFrame"),
];

/// Headers of a delivery.
const SIGNATURE_HEADERS: [(&str, &str, &str); 3] = [
    ("webhook-id", "Id of the delivery; the same for all attempts.", "dlv_01m8160kfmf1q85gn3htasbg81"),
    ("webhook-timestamp", "Time of the attempt, in seconds since 1970.", "1795336195"),
    (
        "webhook-signature",
        "`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, keyed with the secret; two of them, \
         separated by a space, while a secret is rotated.",
        "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
    ),
];

/// Returns the example of an event type: the JSON block of its page.
pub(super) fn example(kind: &str) -> Option<Value> {
    let page = Pages::get(&format!("{kind}.md"))?;
    let text = str::from_utf8(&page.data).ok()?;
    let block = text.split("```json\n").nth(1)?.split("```").next()?;
    serde_json::from_str(block).ok()
}

/// Replaces the schemas of event envelopes by unions of event types, and adds the webhooks.
pub(super) fn add(document: &mut utoipa::openapi::OpenApi) {
    let components = document.components.get_or_insert_default();
    let schemas = &mut components.schemas;
    let logged = split(schemas, "Event", "EventBody");
    let notices = split(schemas, "Notice", "NoticeBody");
    let frame = OneOfBuilder::new()
        .description(Some("A frame of an event stream: an event, or with `deltas=true` a part of an answer."))
        .item(Ref::from_schema_name("Event"))
        .item(Ref::from_schema_name("AgentMessageDelta"));
    schemas.insert("EventFrame".to_owned(), frame.into());
    if let Some(RefOr::T(Schema::Object(payload))) = schemas.get_mut("WebhookPayload") {
        let event = OneOfBuilder::new()
            .description(Some("The event as the API returns it."))
            .item(Ref::from_schema_name("Event"))
            .item(Ref::from_schema_name("Notice"));
        payload.properties.insert("event".to_owned(), event.into());
    }
    for (name, description, value) in SIGNATURE_HEADERS {
        components.parameters.insert(name.to_owned(), header(name, description, value).into());
    }
    let mut webhooks = Paths::new();
    for event in logged.iter().chain(&notices) {
        webhooks.paths.insert(event.kind.clone(), delivery(event));
    }
    document.webhooks = Some(webhooks);
    let operations = document.paths.paths.values_mut().filter_map(|item| item.get.as_mut());
    for operation in operations {
        let id = operation.operation_id.as_deref().unwrap_or_default();
        let Some((_, frame)) = STREAMS.iter().find(|(stream, _)| *stream == id) else { continue };
        if let Some(RefOr::T(response)) = operation.responses.responses.get_mut("200")
            && let Some(RefOr::T(content)) = response.content.get_mut("text/event-stream")
        {
            let place = json!({ "$ref": format!("#/components/schemas/{frame}") });
            content.extensions = Some(Extensions::from_iter([("x-item-schema", place)]));
        }
    }
}

/// Makes the schema `name` a union by `type`: one schema for each variant of the enum `bodies`, which extends
/// the fields that all of them have.
fn split(schemas: &mut Schemas, name: &str, bodies: &str) -> Vec<EventType> {
    let (Some(RefOr::T(Schema::Object(mut base))), Some(RefOr::T(Schema::OneOf(bodies)))) =
        (schemas.remove(name), schemas.remove(bodies))
    else {
        return Vec::new();
    };
    without(&mut base, &["type", "body"]);
    let description = base.description.replace(format!("Fields of every `{name}`."));
    let base_name = format!("{name}Base");
    let types: Vec<_> =
        bodies.items.into_iter().filter_map(|body| variant(schemas, &base_name, body)).collect();
    schemas.insert(base_name, base.into());
    schemas.insert(name.to_owned(), Schema::from(union(description, &types)).into());
    types
}

/// Adds the schema of one event type.
fn variant(schemas: &mut Schemas, base: &str, body: RefOr<Schema>) -> Option<EventType> {
    let RefOr::T(Schema::Object(mut own)) = body else { return None };
    let RefOr::T(Schema::Object(kind)) = own.properties.get("type")? else { return None };
    let kind = kind.enum_values.as_ref()?.first()?.as_str()?.to_owned();
    let description = own.description.take().unwrap_or_default();
    // The derived schema repeats the description at the body.
    match own.properties.get_mut("body") {
        Some(RefOr::T(Schema::Object(body))) => body.description = None,
        Some(RefOr::Ref(body)) => body.description.clear(),
        Some(RefOr::T(_)) | None => {}
    }
    let words = kind.split(['.', '_']).map(capitalized);
    let schema = words.chain(["Event".to_owned()]).collect::<String>();
    // The page of a notice shows the whole delivery.
    let example = example(&kind).map(|example| match example.get("event") {
        Some(event) => event.clone(),
        None => example,
    });
    let typed = AllOfBuilder::new()
        .description(Some(description.clone()))
        .item(Ref::from_schema_name(base))
        .item(own)
        .examples(example);
    schemas.insert(schema.clone(), typed.into());
    Some(EventType { kind, schema, description })
}

fn union(description: Option<String>, types: &[EventType]) -> OneOf {
    let place = |event: &EventType| format!("#/components/schemas/{}", event.schema);
    let mapping = types.iter().map(|event| (event.kind.clone(), place(event)));
    let union = OneOfBuilder::new()
        .description(description)
        .discriminator(Some(Discriminator::with_mapping("type", mapping)));
    types.iter().fold(union, |union, event| union.item(Ref::from_schema_name(&event.schema))).build()
}

fn without(object: &mut Object, fields: &[&str]) {
    object.required.retain(|name| !fields.contains(&name.as_str()));
    object.properties.retain(|name, _| !fields.contains(&name.as_str()));
}

fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_ascii_uppercase() + rest
}

/// Describes the delivery of one event type.
fn delivery(event: &EventType) -> PathItem {
    let summary = event.description.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let body = RequestBodyBuilder::new()
        .content("application/json", payload(event))
        .required(Some(Required::True))
        .build();
    let parameters =
        SIGNATURE_HEADERS.map(|(name, ..)| RefOr::Ref(Ref::new(format!("#/components/parameters/{name}"))));
    let mut operation =
        OperationBuilder::new()
            .tag("webhooks")
            .summary(Some(format!("Delivery of `{}`", event.kind)))
            .description(Some(summary))
            .securities(Some([]))
            .request_body(Some(body))
            .responses(ResponsesBuilder::new().response("2XX", answer("Accepted.")).response(
                "410",
                answer("Not wanted any more: the service disables the webhook or destination."),
            ))
            .build();
    operation.parameters = Some(parameters.into());
    PathItem::new(HttpMethod::Post, operation)
}

/// Describes the body of a delivery.
fn payload(event: &EventType) -> Content {
    let kind = ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .enum_values(Some([event.kind.as_str()]));
    let own = ObjectBuilder::new()
        .property("type", kind)
        .property("event", Ref::from_schema_name(&event.schema))
        .required("type")
        .required("event");
    let schema = AllOfBuilder::new().item(Ref::from_schema_name("WebhookPayload")).item(own).build();
    let example = example(&event.kind).map(|mut example| {
        if example.get("event").is_some() {
            return example;
        }
        if let Some(fields) = example.as_object_mut() {
            // Set only in responses of the API.
            fields.remove("processed_at");
        }
        json!({
            "type": event.kind,
            "sessionId": example["session"],
            "eventId": example["id"],
            "metadata": {},
            "event": example,
        })
    });
    let examples = example.map(|value| ("default", ExampleBuilder::new().value(Some(value)).build()));
    ContentBuilder::new().schema(Some(Schema::AllOf(schema))).examples_from_iter(examples).build()
}

fn answer(description: &str) -> Response {
    ResponseBuilder::new().description(description).build()
}

fn header(name: &str, description: &str, example: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(String::schema()))
        .example(Some(example.into()))
        .build()
}
