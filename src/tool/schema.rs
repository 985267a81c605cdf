//! Validation of a tool's arguments against its JSON Schema.
//!
//! Called by the catalog. An error names each invalid field and what is allowed there, so that the
//! model can correct the call. References outside the schema are not followed.

use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::{Map, Value};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task,
};

use super::custom_schema;
use crate::{
    base::{
        limit::{self, TOOL_SCHEMA_WORK_MAX},
        text,
    },
    domain::tool::MALFORMED_INPUT,
};

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Schema {
    validator: Validator,
    /// Parts of a caller's schema, with its references; 0 for one of the catalog.
    parts: usize,
    words: String,
}

/// Max number of errors in one message; the first ones are the most useful.
const ERRORS_SHOWN_MAX: usize = 5;

/// A schema of a caller, compiled at its first use.
#[derive(Debug)]
pub struct LazySchema {
    pub(super) definition: Map<String, Value>,
    compiled: OnceLock<Result<Schema, String>>,
}

impl LazySchema {
    pub fn new(definition: Map<String, Value>) -> Self {
        Self { definition, compiled: OnceLock::new() }
    }

    /// Uses the compiled schema; or words for the model, if it cannot be compiled. Takes a while for large patterns, in
    /// which the thread's other tasks go on elsewhere.
    pub(super) fn with<T>(&self, work: impl FnOnce(&Schema) -> T) -> Result<T, String> {
        let work = || {
            let compiled = self.compiled.get_or_init(|| Schema::of_caller(&self.definition));
            compiled.as_ref().map(work).map_err(Clone::clone)
        };
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => task::block_in_place(work),
            _ => work(),
        }
    }

    /// Checks the arguments of a call of `tool`; or words for the model.
    pub fn check(&self, tool: &str, input: &Value) -> Result<(), String> {
        self.with(|schema| schema.check_exact(tool, input))?
    }
}

impl Schema {
    /// Compiles a schema of the catalog.
    pub(super) fn compile(schema: &Value) -> Self {
        let validator = jsonschema::validator_for(schema).expect("a schema of the catalog is valid");
        Self { validator, parts: 0, words: schema["properties"].to_string() }
    }

    /// Compiles a schema of a caller.
    ///
    /// # Errors
    /// Words for the caller: the schema is not valid.
    pub(super) fn of_caller(schema: &Map<String, Value>) -> Result<Self, String> {
        let words = schema.get("properties").map(ToString::to_string).unwrap_or_default();
        let schema = Value::Object(schema.clone());
        // An event of an earlier version may have a schema that was never checked.
        let parts = custom_schema::parts(&schema)?;
        Ok(Self { validator: custom_schema::compile(&schema)?, parts, words })
    }

    /// Validates arguments and returns them without nulls, which some models send for "absent".
    pub(super) fn check(&self, tool: &str, input: &Value) -> Result<Value, String> {
        let input = match input {
            Value::Object(fields) => {
                let given = fields.iter().filter(|(_, value)| !value.is_null());
                Value::Object(given.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
            }
            other => other.clone(),
        };
        self.check_exact(tool, &input)?;
        Ok(input)
    }

    /// Returns the first faults of a value, each with its place.
    pub(super) fn faults(&self, value: &Value, max: usize) -> Vec<String> {
        // Each part may be compared with each value, and nothing ends a validation that runs.
        let values = if self.parts > 0 { count(value) } else { 0 };
        if values.saturating_mul(self.parts) > TOOL_SCHEMA_WORK_MAX {
            let parts = self.parts;
            return vec![format!("has {values} values, too many for a schema of {parts} parts: send fewer")];
        }
        let faults = self.validator.iter_errors(value).take(max).map(|fault| {
            let place = fault.instance_path().to_string();
            let words = if place.is_empty() { fault.to_string() } else { format!("{place}: {fault}") };
            text::truncate(&words, limit::TOOL_ERROR_BYTES_MAX).to_owned()
        });
        faults.collect()
    }

    /// Validates arguments as they are.
    pub(super) fn check_exact(&self, tool: &str, input: &Value) -> Result<(), String> {
        if let Some(sent) = input.get(MALFORMED_INPUT).and_then(Value::as_str) {
            let begin = text::truncate(sent, limit::TOOL_ERROR_BYTES_MAX);
            return Err(format!(
                "The arguments of `{tool}` were not a complete JSON object. They began with: {begin}\n\
                 Nothing was run. Send the whole call again, shorter if it was truncated."
            ));
        }
        let faults = self.faults(input, ERRORS_SHOWN_MAX);
        if faults.is_empty() {
            return Ok(());
        }
        let (faults, words) = (faults.join("\n"), &self.words);
        Err(format!("The arguments of `{tool}` are not valid. Nothing was run.\n{faults}\nIt takes: {words}"))
    }
}

/// Returns the number of values in a value, itself included.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_is_too_large_for_its_schema_is_refused_before_it_is_compared() {
        let part = json!({ "type": "array", "items": { "type": "string" } });
        let properties: Map<_, _> = (0..1_000).map(|at| (format!("p{at}"), part.clone())).collect();
        let schema = json!({ "type": "object", "properties": properties });
        let schema = Schema::of_caller(schema.as_object().expect("an object")).expect("a schema");
        let faults = |strings: usize| schema.faults(&json!({ "p0": vec![""; strings] }), 5);
        assert_eq!(faults(1_000), Vec::<String>::new());
        let refused = faults(10_000);
        assert!(refused.len() == 1 && refused[0].contains("too many for a schema of"), "{refused:?}");
    }

    #[test]
    fn a_schema_that_was_never_checked_is_not_compiled_if_its_references_multiply() {
        let mut definitions = Map::new();
        definitions.insert("d0".to_owned(), json!({ "type": "string" }));
        for depth in 1..30 {
            let before = json!({ "$ref": format!("#/$defs/d{}", depth - 1) });
            definitions.insert(format!("d{depth}"), json!({ "allOf": [before, before] }));
        }
        let schema = json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/d29" } }, "$defs": definitions });
        assert!(Schema::of_caller(schema.as_object().expect("an object")).is_err());
    }
}
