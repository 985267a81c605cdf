//! Examples and event types of openapi.yaml: complete, valid, and requests that the service accepts.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::Value;

use super::{
    World, id,
    matrix::{Things, Try, is_operators, table, things},
};
use crate::support::{
    contract::{DOCUMENT, METHODS, Operation, faults, operations},
    pages::EVENTS,
    service::{Answer, send},
};

/// Media types whose content is no text.
const BINARY: [&str; 1] = ["application/x-tar"];
const KEY: &str = "the operator's own key, which is long enough";

/// A content of the description with its example.
struct Content {
    /// JSON pointer of its schema.
    schema: String,
    media: String,
    example: Value,
}

/// Contents of a request body or a response, which the pointer names.
fn contents(place: &str) -> Vec<Content> {
    let found = DOCUMENT.pointer(place).and_then(|place| place["content"].as_object());
    let contents = found.into_iter().flatten().filter(|(media, _)| !BINARY.contains(&media.as_str()));
    contents
        .map(|(media, content)| {
            let example = &content["examples"]["default"];
            let example = match example["$ref"].as_str() {
                Some(place) => DOCUMENT.pointer(&place[1..]).expect("a shared example"),
                None => example,
            };
            Content {
                schema: format!("{place}/content/{}/schema", escaped(media)),
                media: media.clone(),
                example: example["value"].clone(),
            }
        })
        .collect()
}

/// A segment of a JSON pointer.
fn escaped(text: &str) -> String {
    text.replace('~', "~0").replace('/', "~1")
}

fn place(operation: &Operation) -> String {
    format!("/paths/{}/{}", escaped(&operation.path), operation.method.to_ascii_lowercase())
}

/// The request body of an operation.
fn request(operation: &Operation) -> Option<Content> {
    contents(&format!("{}/requestBody", place(operation))).pop()
}

#[test]
fn every_operation_has_examples_that_match_their_schemas() {
    let mut broken = Vec::new();
    let mut check = |what: &str, content: &Content| {
        if content.example.is_null() {
            broken.push(format!("{what}: no example of {} in src/http/openapi/examples", content.media));
        } else {
            broken.extend(
                faults(&content.schema, &content.example).iter().map(|fault| format!("{what}: {fault}")),
            );
        }
    };
    for operation in operations() {
        contents(&format!("{}/requestBody", place(&operation)))
            .iter()
            .for_each(|content| check(&format!("request of {}", operation.id), content));
        let responses = operation.description["responses"].as_object().expect("responses");
        for status in responses.keys().filter(|status| status.starts_with('2')) {
            contents(&format!("{}/responses/{status}", place(&operation)))
                .iter()
                .for_each(|content| check(&format!("{status} of {}", operation.id), content));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_event_type_has_a_schema_an_example_and_a_webhook() {
    let mut types = BTreeSet::new();
    for (union, is_logged) in [("Event", true), ("Notice", false)] {
        let schema = &DOCUMENT["components"]["schemas"][union];
        let mapping = schema["discriminator"]["mapping"].as_object().expect("a mapping");
        assert_eq!(schema["discriminator"]["propertyName"], "type");
        assert_eq!(schema["oneOf"].as_array().expect("types").len(), mapping.len());
        for (kind, schema) in mapping {
            let schema = schema.as_str().expect("a reference")[1..].to_owned();
            let example = &DOCUMENT.pointer(&schema).expect("it leads somewhere")["examples"][0];
            let page = &EVENTS[kind].example;
            assert_eq!(example, if is_logged { page } else { &page["event"] }, "{kind}");
            assert_eq!(faults(&schema, example), [""; 0], "{kind}");
            let other = if kind == "turn.completed" { "turn.started" } else { "turn.completed" };
            assert_ne!(faults(&schema, &EVENTS[other].example), [""; 0], "{kind} is {other}");
            types.insert(kind.clone());
        }
    }
    let pages: BTreeSet<_> = EVENTS.keys().cloned().collect();
    assert_eq!(types, pages);
    let webhooks = DOCUMENT["webhooks"].as_object().expect("webhooks");
    assert_eq!(types, webhooks.keys().cloned().collect());
    for kind in types {
        let methods: Vec<_> =
            METHODS.iter().filter(|method| webhooks[&kind].get(**method).is_some()).collect();
        assert_eq!(methods, [&"post"], "{kind}");
        let [payload] = &contents(&format!("/webhooks/{kind}/post/requestBody"))[..] else {
            panic!("{kind} has one body")
        };
        assert_eq!(payload.example["type"], kind.as_str());
        assert_eq!(payload.example["event"]["type"], kind.as_str());
        assert_eq!(faults(&payload.schema, &payload.example), [""; 0], "{kind}");
    }
}

#[tokio::test]
async fn the_service_accepts_every_request_of_an_example() {
    let world = World::with(&["--role=api", &format!("--operator-key={KEY}")]).await;
    let operator = world.service.caller(KEY);
    let organization = id(&world.owner.get("/organization").await.ok());
    let (table, mine): (_, Things) = (table(), things(&world.owner).await);
    let (mut checked, mut broken) = (0, Vec::new());
    for operation in operations() {
        let Some(content) = request(&operation) else { continue };
        let is_json = content.media == "application/json";
        let answer: Answer = if is_operators(&operation) {
            let path = operation.path.trim_start_matches("/v3").replace("{organization_id}", &organization);
            let method: Method = operation.method.parse().expect("a method");
            send(operator.request(method, &path).json(&content.example)).await
        } else if operation.id == "importSession" {
            let text = content.example.as_str().expect("lines").to_owned();
            let request = world.owner.request(Method::POST, "/sessions/import");
            send(request.header("content-type", content.media).body(text)).await
        } else if is_json && let Some(row) = table.get(operation.id.as_str()) {
            let once = Some((operation.id.as_str(), Some(content.example)));
            Try { operation: &operation, row, once }.by(&world.owner, &mine).await
        } else {
            // A file, and the message of another system: any content is valid.
            continue;
        };
        // Valid, but for an id that does not exist here or a state that does not allow it.
        let is_valid = answer.status.is_success() || [402, 404, 409, 422].contains(&answer.status.as_u16());
        if !is_valid {
            broken.push(format!("{} answers {}: {}", operation.id, answer.status, answer.body));
        }
        checked += 1;
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(checked > 35, "{checked}");
    world.end().await;
}
