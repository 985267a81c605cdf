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
    base::{limit, text},
    domain::tool::MALFORMED_INPUT,
};

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Schema {
    validator: Validator,
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
        Self { validator, words: schema["properties"].to_string() }
    }

    /// Compiles a schema of a caller.
    ///
    /// # Errors
    /// Words for the caller: the schema is not valid.
    pub(super) fn of_caller(schema: &Map<String, Value>) -> Result<Self, String> {
        let words = schema.get("properties").map(ToString::to_string).unwrap_or_default();
        Ok(Self { validator: custom_schema::compile(&Value::Object(schema.clone()))?, words })
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
