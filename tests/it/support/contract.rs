//! What openapi.yaml promises, held against every answer that a test gets.
//!
//! Called by the fixture's caller after each request: an answer with a status that
//! is not documented, or a body with a field that is not, fails the test.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::pages;

/// The document that the code emits.
pub static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(sojourn::http::description()).expect("a description is JSON"));

/// The document with objects closed, so that a field it does not name is a fault.
static STRICT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = DOCUMENT.clone();
    close(&mut document["components"]["schemas"]);
    close(&mut document["paths"]);
    document
});

static VALIDATORS: LazyLock<Mutex<HashMap<String, &'static Validator>>> = LazyLock::new(Mutex::default);

/// Methods that operations may have.
pub const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// One operation of the document.
#[derive(Clone, Debug)]
pub struct Operation {
    pub id: String,
    pub method: String,
    pub path: String,
    pub description: &'static Value,
}

/// Every operation of the document.
pub fn operations() -> Vec<Operation> {
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    let of_path = |(path, item): (&String, &'static Value)| {
        let methods = METHODS.iter().filter(|method| item.get(**method).is_some());
        methods
            .map(|method| Operation {
                id: item[*method]["operationId"].as_str().expect("an operationId").to_owned(),
                method: method.to_ascii_uppercase(),
                path: path.clone(),
                description: &item[*method],
            })
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

/// Fails unless the document promises this answer. `path` has no query.
#[track_caller]
pub fn check(method: &str, path: &str, status: u16, content_type: &str, body: &Value) {
    if status >= 400 && body["error"].is_object() {
        pages::check_error(&body["error"]);
    }
    if status == 200 && (path.ends_with("/events") || path.ends_with("/messages")) {
        body["data"].as_array().into_iter().flatten().for_each(pages::check_event);
    }
    let Some(template) = template(path) else {
        assert_eq!(status, 404, "{method} {path} is not documented and answered: {body}");
        return assert_error(body);
    };
    let operation = &STRICT["paths"][&template][method.to_ascii_lowercase()];
    if operation.is_null() {
        assert!(status == 405, "{method} {path} is not documented and answered {status}: {body}");
        return assert_error(body);
    }
    let responses = &operation["responses"];
    let class = if responses.get(status.to_string()).is_some() {
        status.to_string()
    } else {
        format!("{}XX", status / 100)
    };
    let response = resolved(&responses[&class]);
    assert!(!response.is_null(), "{method} {path} may not answer {status}: {body}");
    if content_type.is_empty() {
        assert!(response.get("content").is_none(), "{method} {path} answered {status} without a body");
        return;
    }
    let media = content_type.split(';').next().unwrap_or_default();
    let schema = &response["content"][media]["schema"];
    assert!(!schema.is_null(), "{method} {path} may not answer {status} as {media}: {body}");
    if media == "application/json" {
        let validator = validator(format!("{method} {template} {class}"), schema);
        let faults: Vec<_> =
            validator.iter_errors(body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
        assert!(faults.is_empty(), "{method} {path} {status} is not as documented: {faults:#?}\n{body:#}");
    }
}

/// The documented path that a real one is of; exact segments win over ids.
fn template(path: &str) -> Option<String> {
    let segments: Vec<_> = path.split('/').collect();
    let fits = |template: &&String| {
        let wanted: Vec<_> = template.split('/').collect();
        wanted.len() == segments.len()
            && wanted
                .iter()
                .zip(&segments)
                .all(|(wanted, given)| wanted == given || (wanted.starts_with('{') && !given.is_empty()))
    };
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    paths.keys().filter(fits).min_by_key(|template| template.matches('{').count()).cloned()
}

fn resolved(value: &'static Value) -> &'static Value {
    match value["$ref"].as_str() {
        Some(place) => STRICT.pointer(&place[1..]).unwrap_or_else(|| panic!("{place} is not there")),
        None => value,
    }
}

fn validator(name: String, schema: &Value) -> &'static Validator {
    let mut validators = VALIDATORS.lock().expect("no holder of the validators panics");
    validators.entry(name).or_insert_with(|| {
        let root = json!({ "allOf": [schema], "components": { "schemas": STRICT["components"]["schemas"] } });
        let validator = jsonschema::draft202012::options().should_validate_formats(true).build(&root);
        // As many as there are operations, for the life of the test.
        Box::leak(Box::new(validator.expect("a documented schema is one")))
    })
}

#[track_caller]
fn assert_error(body: &Value) {
    let schema = json!({ "$ref": "#/components/schemas/ErrorBody" });
    let fault =
        validator("error".to_owned(), &schema).iter_errors(body).next().map(|fault| fault.to_string());
    assert_eq!(fault, None, "{body}");
}

/// Closes every object that names its fields.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            let names_fields = fields.get("properties").is_some_and(Value::is_object)
                && fields.get("type").is_some_and(|kind| kind == "object");
            if names_fields && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
