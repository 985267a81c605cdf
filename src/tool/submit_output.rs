//! `submit_output`: the output of a turn, which fits a schema of the caller.
//!
//! It is offered to every model alike. Providers also have an output format of their own, but that holds for each
//! response of a conversation, also those beside tool calls, and covers a part of JSON Schema; here the whole schema
//! judges, and a provider that can restricts the arguments of the tool.

use serde_json::{Map, Value};
use tokio::task;

use super::{custom_schema, schema::LazySchema};
use crate::{
    base::limit::{OUTPUT_BYTES_MAX, OUTPUT_FAULTS_MAX},
    domain::tool::{MALFORMED_INPUT, Replay, SUBMIT_OUTPUT, ToolCall, ToolSpec},
};

/// `submit_output` with the schema of a turn.
#[derive(Debug)]
pub struct OutputTool {
    schema: LazySchema,
}

impl OutputTool {
    pub fn new(schema: Map<String, Value>) -> Self {
        Self { schema: LazySchema::new(schema) }
    }

    /// Returns the tool as the model sees it.
    pub fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: SUBMIT_OUTPUT.to_owned(),
            description: "Submits the output of this task and ends it. The arguments are the output. Call it once, when \
                everything else is done; text alone does not end the task."
                .to_owned(),
            input_schema: Value::Object(self.schema.definition.clone()),
            replay: Replay::ReadOnly,
        }
    }

    /// Returns the first faults of a submitted output; none if it fits.
    pub fn faults(&self, call: &ToolCall) -> Vec<String> {
        if call.input.get(MALFORMED_INPUT).is_some() {
            return vec!["the arguments are not a complete JSON object".to_owned()];
        }
        let bytes = call.input.to_string().len();
        if bytes > OUTPUT_BYTES_MAX {
            return vec![format!("has {bytes} bytes as JSON; at most {OUTPUT_BYTES_MAX} are accepted")];
        }
        let faults = self.schema.with(|schema| schema.faults(&call.input, OUTPUT_FAULTS_MAX));
        faults.unwrap_or_else(|words| vec![words])
    }
}

/// Checks the schema of an output. Compiles patterns, so it does not run on a thread of the runtime.
///
/// # Errors
/// Words for the caller: it is no JSON Schema of 2020-12 for an object, refers to another document or to itself, or is
/// too large.
#[expect(clippy::disallowed_methods, reason = "awaited here")]
pub async fn check_output_schema(schema: Map<String, Value>) -> Result<(), String> {
    let check = move || custom_schema::Checker::default().check(&schema);
    let checked = task::spawn_blocking(check).await;
    checked.unwrap_or_else(|error| Err(format!("was not checked: {error}")))
}
