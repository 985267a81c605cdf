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

/// Returns whether a provider is asked to restrict the arguments of a tool. Only those of the output are: a grammar of
/// all tools would be too large.
pub(super) fn is_strict(spec: &ToolSpec) -> bool {
    let mut parts = 0;
    spec.name == SUBMIT_OUTPUT && fits(&spec.input_schema, &mut parts) && parts <= PARTS_MAX
}

fn fits(schema: &Value, parts: &mut usize) -> bool {
    *parts += 1;
    let Some(fields) = schema.as_object() else { return false };
    let is_object = schema["type"] == "object" || fields.contains_key("properties");
    fields.keys().all(|keyword| KEYWORDS.contains(&keyword.as_str()))
        && (!is_object || is_closed(schema))
        && ["properties", "$defs"].iter().all(|names| match schema.get(names) {
            Some(Value::Object(schemas)) => schemas.values().all(|schema| fits(schema, parts)),
            other => other.is_none(),
        })
        && schema.get("items").is_none_or(|items| fits(items, parts))
        && match schema.get("anyOf") {
            Some(Value::Array(schemas)) => schemas.iter().all(|schema| fits(schema, parts)),
            other => other.is_none(),
        }
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

    #[test]
    fn only_the_output_is_restricted_and_only_by_what_both_providers_take() {
        let inner = object(json!({ "name": { "type": ["string", "null"] } }), &["name"]);
        let schema = object(
            json!({
                "kind": { "enum": ["a", "b"] },
                "items": { "type": "array", "items": inner },
                "either": { "anyOf": [{ "type": "integer" }, { "$ref": "#/$defs/x" }] },
            }),
            &["kind", "items", "either"],
        );
        assert!(is_strict(&spec(SUBMIT_OUTPUT, schema.clone())));
        assert!(!is_strict(&spec("other", schema)));
        for unfit in [
            json!({ "type": "object" }),
            object(json!({ "a": { "type": "string" } }), &[]),
            object(json!({ "a": { "type": "string", "pattern": "x" } }), &["a"]),
            object(json!({ "a": { "type": "object", "properties": {} } }), &["a"]),
            object(json!({ "a": true }), &["a"]),
            object(json!({ "a": { "allOf": [] } }), &["a"]),
        ] {
            assert!(!is_strict(&spec(SUBMIT_OUTPUT, unfit.clone())), "{unfit}");
        }
    }
}
