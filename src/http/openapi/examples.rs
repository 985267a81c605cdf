//! Examples of requests and responses, from the files in `examples/`.
//!
//! A file holds `schemas`: an example for each type, by its name in the document; and `operations`: examples of
//! an operation in place of those of its types, by its id. In either `{"$example": "NAME", ...}` stands for the
//! example of a type, or of an event type from its page in `docs/events`, with the other fields replaced.

use std::collections::BTreeMap;

use rust_embed::RustEmbed;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::openapi::{
    Content, Ref, RefOr, Schema,
    example::{Example, ExampleBuilder},
};

use super::events;

/// Files of examples; a debug build reads them from disk.
#[derive(RustEmbed)]
#[folder = "src/http/openapi/examples"]
#[include = "*.json"]
struct Files;

/// The examples of all files.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Examples {
    schemas: BTreeMap<String, Value>,
    operations: BTreeMap<String, OfOperation>,
}

/// Examples of one operation, in place of those of its types.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OfOperation {
    request: Option<Value>,
    /// Success responses by status.
    responses: BTreeMap<String, Value>,
    /// Frames of the stream, in order.
    stream: Option<Vec<Frame>>,
}

/// A server-sent event.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame {
    id: Option<String>,
    data: Value,
}

/// Adds an example to the request body and the success responses of each operation.
pub(super) fn add(document: &mut utoipa::openapi::OpenApi) {
    let examples = Examples::read();
    let mut shared = BTreeMap::new();
    let items = document.paths.paths.values_mut();
    let operations = items.flat_map(|item| {
        let methods = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        methods.into_iter().filter_map(Option::as_mut)
    });
    for operation in operations {
        let id = operation.operation_id.as_deref().unwrap_or_default();
        let own = examples.operations.get(id);
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            for content in body.content.values_mut() {
                let RefOr::T(content) = content else { continue };
                examples.fill(content, own.and_then(|own| own.request.as_ref()), &mut shared);
            }
        }
        let successes =
            operation.responses.responses.iter_mut().filter(|(status, _)| status.starts_with('2'));
        for (status, response) in successes {
            let RefOr::T(response) = response else { continue };
            for (media, content) in &mut response.content {
                let RefOr::T(content) = content else { continue };
                match own.and_then(|own| own.stream.as_ref()) {
                    Some(frames) if media == "text/event-stream" => {
                        content.examples = only(examples.frames(frames).into());
                    }
                    _ => examples.fill(content, own.and_then(|own| own.responses.get(status)), &mut shared),
                }
            }
        }
    }
    document.components.get_or_insert_default().examples.extend(shared);
}

impl Examples {
    /// Reads all files.
    fn read() -> Self {
        let mut all = Self::default();
        for name in Files::iter() {
            let Some(file) = Files::get(&name) else { continue };
            let one: Self = serde_json::from_slice(&file.data)
                .unwrap_or_else(|error| panic!("src/http/openapi/examples/{name}: {error}"));
            all.schemas.extend(one.schemas);
            all.operations.extend(one.operations);
        }
        all
    }

    /// Sets the example of a content: `own`, else that of its type.
    fn fill(
        &self,
        content: &mut Content,
        own: Option<&Value>,
        shared: &mut BTreeMap<String, RefOr<Example>>,
    ) {
        if let Some(own) = own {
            content.examples = only(self.expanded(own));
        } else if let Some(name) = content.schema.as_ref().and_then(named)
            && let Some(value) = self.of_type(name)
        {
            shared.entry(name.to_owned()).or_insert_with(|| of(value).into());
            let place = Ref::new(format!("#/components/examples/{name}"));
            content.examples = BTreeMap::from([(DEFAULT.to_owned(), RefOr::Ref(place))]);
        }
    }

    /// Returns the example of a type; a page has one row.
    fn of_type(&self, name: &str) -> Option<Value> {
        match (self.schemas.get(name), name.strip_prefix("Page_")) {
            (Some(value), _) => Some(self.expanded(value)),
            (None, Some(row)) => self.of_type(row).map(|row| json!({ "data": [row], "next_cursor": null })),
            (None, None) => events::example(name),
        }
    }

    /// Replaces each `{"$example": "NAME", ...}`.
    fn expanded(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let mut whole = match fields.get("$example").and_then(Value::as_str) {
                    Some(name) => match self.of_type(name) {
                        Some(Value::Object(whole)) => whole,
                        other => panic!("src/http/openapi/examples: {name} is {other:?}"),
                    },
                    None => Map::new(),
                };
                let own = fields.iter().filter(|(name, _)| *name != "$example");
                whole.extend(own.map(|(name, field)| (name.clone(), self.expanded(field))));
                Value::Object(whole)
            }
            Value::Array(items) => items.iter().map(|item| self.expanded(item)).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }

    /// Writes frames as the text of a stream.
    fn frames(&self, frames: &[Frame]) -> String {
        let text = |frame: &Frame| {
            let id = frame.id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
            format!("{id}data: {}\n\n", self.expanded(&frame.data))
        };
        frames.iter().map(text).collect()
    }
}

/// Name under which a content has its only example.
const DEFAULT: &str = "default";

fn only(value: Value) -> BTreeMap<String, RefOr<Example>> {
    BTreeMap::from([(DEFAULT.to_owned(), of(value).into())])
}

fn of(value: Value) -> Example {
    ExampleBuilder::new().value(Some(value)).build()
}

/// Name of the type of a content, also if the content may be null.
fn named(schema: &RefOr<Schema>) -> Option<&str> {
    match schema {
        RefOr::Ref(place) => place.ref_location.strip_prefix("#/components/schemas/"),
        RefOr::T(Schema::OneOf(choices)) => choices.items.iter().find_map(named),
        RefOr::T(_) => None,
    }
}
