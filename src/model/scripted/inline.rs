//! `scripted/inline`: plays the `script` of the newest input object.
//!
//! Called by `Scripted`. The grammar is in docs/scripted.md. The text of the newest user message is
//! the JSON of the input object; the step index is the number of responses since that message.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::step::{DONE, Kind, Planned, Step, since_last_user};
use crate::{
    base::limit,
    domain::{Message, StopReason, Usage},
    model::{Fault, exchange::short},
};

/// Only `script` is read; other fields belong to the caller.
#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    script: Vec<Line>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    text: String,
    #[serde(default)]
    thinking: String,
    #[serde(default)]
    tools: Vec<Call>,
    #[serde(default)]
    delay_ms: u64,
    usage: Option<Used>,
    stop: Option<StopReason>,
    fault: Option<FaultSpec>,
    #[serde(default)]
    new_ids: bool,
    #[serde(default = "one")]
    repeat: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    #[serde(default)]
    input: Map<String, Value>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Used {
    input_tokens: u32,
    output_tokens: u32,
    cache_read_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultSpec {
    kind: Kind,
    #[serde(default = "one")]
    times: u32,
    retry_after_ms: Option<u64>,
}

fn one() -> u32 {
    1
}

/// Returns the step for this history.
///
/// # Errors
/// `Refused` for an input object with an invalid script; the message names the position.
pub(super) fn step(history: &[Message]) -> Result<Step, Fault> {
    let rest = since_last_user(history);
    let newest = history[..history.len() - rest.len()].last();
    let script = match newest {
        Some(Message::User { text, .. }) => parse(text)?,
        Some(Message::Assistant { .. } | Message::Results { .. }) | None => Vec::new(),
    };
    let answers = rest.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
    let mut skipped = 0;
    for line in script {
        skipped += line.repeat as usize;
        if answers < skipped {
            return Ok(line.into());
        }
    }
    Ok(Step { text: DONE.to_owned(), ..Step::default() })
}

/// Plain text has no script: a plain-text message ends its turn at once.
fn parse(text: &str) -> Result<Vec<Line>, Fault> {
    if !text.trim_start().starts_with('{') {
        return Ok(Vec::new());
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let input: Input = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| Fault::Refused { reason: short(&format!("the script is malformed: {error}")) })?;
    Ok(input.script)
}

impl From<Line> for Step {
    fn from(line: Line) -> Self {
        let usage = |used: Used| Usage {
            input_tokens: used.input_tokens.into(),
            output_tokens: used.output_tokens.into(),
            cache_write_tokens: used.cache_write_tokens.into(),
            cache_read_tokens: used.cache_read_tokens.into(),
            ..Usage::default()
        };
        let fault = line.fault.map(|trouble| Planned {
            kind: trouble.kind,
            times: trouble.times,
            retry_after: trouble.retry_after_ms.map(Duration::from_millis),
        });
        Self {
            thinking: line.thinking,
            text: line.text,
            tools: line.tools.into_iter().map(|call| (call.tool, Value::Object(call.input))).collect(),
            delay: Duration::from_millis(line.delay_ms).min(limit::SCRIPT_DELAY_MAX),
            usage: line.usage.map(usage),
            stop: line.stop,
            fault,
            new_ids: line.new_ids,
        }
    }
}
