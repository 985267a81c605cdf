//! Tools whose arguments a provider can restrict to their schema.
//!
//! Providers restrict what a model writes by a grammar that they make of the schema. They take a part of JSON Schema
//! only, and refuse a request with another one; this is the part that both take: see "JSON Schema limitations" of
//! Anthropic's structured outputs, and "Supported schemas" of OpenAI's.

use serde_json::Value;

use crate::domain::tool::{SUBMIT_OUTPUT, ToolSpec};

/// Keywords that both providers take.
const KEYWORDS: [&str; 12] = [
    "$defs",
    "$ref",
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "properties",
    "required",
    "type",
];
/// Parts of a schema; a provider refuses a grammar that is too large.
const PARTS_MAX: usize = 200;
/// Alternatives in a schema (`anyOf`, several types); Anthropic refuses more.
const UNIONS_MAX: usize = 16;

/// Returns whether a provider is asked to restrict the arguments of a tool. Only those of the output are: a grammar of
/// all tools would be too large.
pub(super) fn is_strict(spec: &ToolSpec) -> bool {
    let mut size = GrammarSize::default();
    spec.name == SUBMIT_OUTPUT
        && spec.input_schema["type"] == "object"
        && fits(&spec.input_schema, &mut size)
        && size.parts <= PARTS_MAX
        && size.unions <= UNIONS_MAX
}

#[derive(Default)]
struct GrammarSize {
    parts: usize,
    unions: usize,
}

fn fits(schema: &Value, size: &mut GrammarSize) -> bool {
    size.parts += 1;
    let Some(fields) = schema.as_object() else { return false };
    size.unions += usize::from(schema["type"].is_array() || fields.contains_key("anyOf"));
    let is_object = is_of_type(schema, "object") || fields.contains_key("properties");
    // Both providers need to know what a part is; a constant alone does not say it.
    ["type", "$ref", "anyOf"].iter().any(|keyword| fields.contains_key(*keyword))
        && fields.keys().all(|keyword| KEYWORDS.contains(&keyword.as_str()))
        && (!is_object || is_closed(schema))
        && (!is_of_type(schema, "array") || fields.contains_key("items"))
        && schema.get("const").is_none_or(is_scalar)
        && schema.get("enum").is_none_or(|all| all.as_array().is_some_and(|all| all.iter().all(is_scalar)))
        && ["properties", "$defs"].iter().all(|names| match schema.get(names) {
            Some(Value::Object(schemas)) => schemas.values().all(|schema| fits(schema, size)),
            other => other.is_none(),
        })
        && schema.get("items").is_none_or(|items| fits(items, size))
        && match schema.get("anyOf") {
            Some(Value::Array(schemas)) => schemas.iter().all(|schema| fits(schema, size)),
            other => other.is_none(),
        }
}

fn is_of_type(schema: &Value, name: &str) -> bool {
    match &schema["type"] {
        Value::Array(types) => types.iter().any(|kind| kind == name),
        kind => kind == name,
    }
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

/// Returns whether an object has all its properties and no others.
fn is_closed(schema: &Value) -> bool {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    schema["additionalProperties"] == false
        && schema["properties"].as_object().is_some_and(|properties| {
            properties.keys().all(|name| required.iter().any(|required| required.as_str() == Some(name)))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::tool::Replay;

    fn spec(name: &str, input_schema: Value) -> ToolSpec {
        let (name, description) = (name.to_owned(), String::new());
        ToolSpec { name, description, input_schema, replay: Replay::ReadOnly }
    }

    fn object(properties: Value, required: &[&str]) -> Value {
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }

    /// An object with optional values, each of which is a union.
    fn many(unions: usize) -> Value {
        let names: Vec<_> = (0..unions).map(|at| format!("p{at}")).collect();
        let optional = |name: &String| (name.clone(), json!({ "type": ["string", "null"] }));
        let required: Vec<_> = names.iter().map(String::as_str).collect();
        object(Value::Object(names.iter().map(optional).collect()), &required)
    }

    #[test]
    fn only_the_output_is_restricted_and_only_by_what_both_providers_take() {
        let inner = object(json!({ "name": { "type": ["string", "null"] } }), &["name"]);
        let schema = object(
            json!({
                "kind": { "type": "string", "enum": ["a", "b"] },
                "items": { "type": "array", "items": inner },
                "either": { "anyOf": [{ "type": "integer" }, { "$ref": "#/$defs/x" }] },
            }),
            &["kind", "items", "either"],
        );
        assert!(is_strict(&spec(SUBMIT_OUTPUT, schema.clone())));
        assert!(is_strict(&spec(SUBMIT_OUTPUT, many(16))));
        assert!(!is_strict(&spec("other", schema)));
        for unfit in [
            json!({ "type": "object" }),
            object(json!({ "a": { "type": "string" } }), &[]),
            object(json!({ "a": { "type": "string", "pattern": "x" } }), &["a"]),
            object(json!({ "a": { "type": "object", "properties": {} } }), &["a"]),
            object(json!({ "a": true }), &["a"]),
            object(json!({ "a": { "allOf": [] } }), &["a"]),
            object(json!({ "a": {} }), &["a"]),
            object(json!({ "a": { "const": "x" } }), &["a"]),
            object(json!({ "a": { "type": "object", "enum": [{}] } }), &["a"]),
            object(json!({ "a": { "type": ["object", "null"] } }), &["a"]),
            object(json!({ "a": { "type": "array" } }), &["a"]),
            many(17),
        ] {
            assert!(!is_strict(&spec(SUBMIT_OUTPUT, unfit.clone())), "{unfit}");
        }
    }
}
