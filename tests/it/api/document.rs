//! openapi.yaml: the committed file matches the generated one and is well formed.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::contract::{DOCUMENT, operations};

#[test]
fn the_committed_document_is_the_emitted_one() {
    let committed = include_str!("../../../openapi.yaml");
    assert!(committed == sojourn::http::document(), "openapi.yaml is out of date: run `make openapi`");
}

#[test]
fn every_list_has_one_envelope_and_says_its_order() {
    let mut lists = 0;
    for operation in operations().into_iter().filter(|operation| operation.method == "GET") {
        let id = operation.id.as_str();
        let schema = &operation.description["responses"]["200"]["content"]["application/json"]["schema"];
        let name = schema["$ref"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        assert_ne!(schema["type"], "array", "{id}: a list is a page");
        let is_page = name.starts_with("Page_");
        // The entries of a directory are a part of it, not resources.
        assert_eq!(is_page, (id.starts_with("list") && id != "listFiles") || id == "getUsage", "{id}");
        if !is_page {
            continue;
        }
        let fields = &DOCUMENT["components"]["schemas"][name]["properties"];
        let fields: Vec<_> = fields.as_object().expect("fields").keys().collect();
        assert_eq!(fields, ["data", "next_cursor"], "{name}");
        let words = operation.description["description"].as_str().unwrap_or_default();
        let is_ordered =
            ["Newest", "Oldest", "oldest first", "Sorted"].iter().any(|order| words.contains(order));
        assert!(is_ordered, "{id} does not state its order: {words}");
        lists += 1;
    }
    assert!(lists > 20, "{lists}");
}

#[test]
fn every_operation_says_what_it_is() {
    let tags: BTreeSet<_> = DOCUMENT["tags"]
        .as_array()
        .expect("tags")
        .iter()
        .map(|tag| tag["name"].clone().to_string())
        .collect();
    let (mut ids, mut faults) = (BTreeSet::new(), Vec::new());
    for operation in operations() {
        let (id, description) = (operation.id, operation.description);
        let mut fault = |what: &str| faults.push(format!("{id}: {what}"));
        if !ids.insert(id.clone()) {
            fault("its operationId is another's too");
        }
        if !description["tags"][0].is_string() || !tags.contains(&description["tags"][0].to_string()) {
            fault("no tag, or one that the document does not describe");
        }
        if description["summary"].as_str().is_none_or(|summary| summary.len() < 10) {
            fault("no summary");
        }
        let responses = description["responses"].as_object().expect("responses");
        // Switching to a WebSocket (101) is a success.
        if !responses.keys().any(|class| class.starts_with('2') || class == "101") {
            fault("no success");
        }
        if !["500", "503"].iter().all(|status| responses.contains_key(*status)) {
            fault("no errors");
        }
        if responses.keys().any(|status| status.parse::<u16>().is_err()) {
            fault("a class of statuses instead of those that it has");
        }
        for (class, response) in responses {
            if response.get("$ref").is_none() && response["description"].as_str().is_none_or(str::is_empty) {
                fault(&format!("{class} has no description"));
            }
            if class == "204" && response.get("content").is_some() {
                fault("204 with a body");
            }
        }
        let in_path: BTreeSet<_> =
            operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = description["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let named = parameters.iter().filter(|parameter| parameter["in"] == "path");
        if named.clone().any(|parameter| parameter["required"] != true) {
            fault("a path parameter that is not required");
        }
        if named.filter_map(|parameter| parameter["name"].as_str()).collect::<BTreeSet<_>>() != in_path {
            fault("the parameters of its path are not those that it describes");
        }
        let takes_key = parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key");
        // Reattaching to a session changes nothing.
        if takes_key != (operation.method == "POST" && id != "reattachSession") {
            fault("every POST that changes something takes an Idempotency-Key, and nothing else does");
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(ids.len() > 30, "the description lost its operations");
}

#[test]
fn every_reference_leads_somewhere_and_every_part_is_used() {
    let mut used = BTreeSet::new();
    references(&DOCUMENT, &mut used);
    let lost: Vec<_> = used.iter().filter(|place| DOCUMENT.pointer(&place[1..]).is_none()).collect();
    assert!(lost.is_empty(), "{lost:?}");
    for kind in ["schemas", "responses", "headers", "parameters", "examples"] {
        for name in DOCUMENT["components"][kind].as_object().expect(kind).keys() {
            let place = format!("#/components/{kind}/{name}");
            assert!(used.contains(&place), "{place} is not used");
        }
    }
}

#[test]
fn every_object_that_is_sent_refuses_unknown_fields() {
    // The body of a trigger message has its sender's format.
    for operation in operations().into_iter().filter(|operation| operation.id != "receiveTrigger") {
        let body = &operation.description["requestBody"]["content"]["application/json"]["schema"];
        let schemas: Vec<&Value> = match body {
            Value::Null => continue,
            body => body["oneOf"].as_array().map_or(vec![body], |choices| choices.iter().collect()),
        };
        for schema in schemas.into_iter().filter(|schema| schema["type"] != "null") {
            let place = schema["$ref"]
                .as_str()
                .unwrap_or_else(|| panic!("{} has no named schema for its body", operation.id));
            let schema = DOCUMENT.pointer(&place[1..]).expect("it leads somewhere");
            assert_eq!(schema["additionalProperties"], false, "{place}");
        }
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(place) = fields.get("$ref").and_then(Value::as_str) {
                found.insert(place.to_owned());
            }
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
