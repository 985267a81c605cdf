//! `ask`: questions to the caller. It needs no sandbox.
//!
//! In one form, which the catalog has, it ends the turn: the harness appends the question as an event, and the answer is
//! the caller's next message. In the other one, [`WaitingAsk`], the turn waits for the answers.

use std::sync::OnceLock;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, Services, Tool, parse, schema::Schema};
use crate::{
    base::limit,
    domain::{
        question::Question,
        tool::{ASK, Replay, ToolCall, ToolSpec},
    },
};

/// Checked by the schema; the harness reads them from the call.
#[derive(Debug, Deserialize)]
struct Args {}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: ASK.to_owned(),
        description:
            "Asks the caller a question and ends the turn until there is an answer. Use it only if you \
            cannot continue without one: a decision that is not yours, or a fact that only the caller knows."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "minLength": 1, "description": "The complete question."},
                "options": {
                    "type": "array", "items": {"type": "string", "minLength": 1},
                    "maxItems": limit::ASK_OPTIONS_MAX,
                    "description": "Suggested answers, if there are a few likely ones.",
                },
            },
            "required": ["question"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    /// The answer itself is the caller's next message.
    async fn run_outside(
        &self,
        _call_id: &str,
        _services: &dyn Services,
    ) -> Option<Result<CallResult, Fault>> {
        Some(Ok(CallResult::ok("The question was put to the caller. The answer comes as the next message.")))
    }
}

/// The tool for agents whose turns wait for the answers.
#[derive(Debug)]
pub struct WaitingAsk {
    /// Seconds that a turn waits.
    pub expires_seconds: u64,
    schema: OnceLock<Schema>,
}

#[derive(Deserialize)]
struct Questions {
    questions: Vec<Question>,
}

impl WaitingAsk {
    pub fn new(expires_seconds: u64) -> Self {
        Self { expires_seconds, schema: OnceLock::new() }
    }

    /// Returns the questions of a call; or words for the model.
    pub fn questions(&self, call: &ToolCall) -> Result<Vec<Question>, String> {
        let schema = self.schema.get_or_init(|| Schema::compile(&waiting_spec().input_schema));
        let arguments = schema.check(ASK, &call.input)?;
        match arguments.to_string().len() {
            ..=limit::QUESTIONS_BYTES_MAX => {}
            bytes => {
                return Err(format!(
                    "The questions have {bytes} bytes as JSON; at most {} are accepted. Nobody was asked. Ask in fewer \
                     words, and put the rest into a message or a file.",
                    limit::QUESTIONS_BYTES_MAX
                ));
            }
        }
        let asked: Questions = serde_json::from_value(arguments).map_err(|error| error.to_string())?;
        Ok(asked.questions)
    }
}

/// Returns `ask` as the model sees it, if the turn waits for the answers.
pub fn waiting_spec() -> ToolSpec {
    let text = |description: &str| json!({"type": "string", "minLength": 1, "description": description});
    let option = json!({
        "type": "object",
        "properties": {
            "label": text("The answer in a few words."),
            "description": text("What choosing it means."),
        },
        "required": ["label"],
        "additionalProperties": false,
    });
    let question = json!({
        "type": "object",
        "properties": {
            "question": text("The complete question."),
            "header": text("One or two words that name the question."),
            "options": {
                "type": "array", "items": option, "maxItems": limit::ASK_OPTIONS_MAX,
                "description": "Answers to choose from, if there are a few likely ones.",
            },
            "multiple": {"type": "boolean", "description": "Whether several options may be chosen (default false)."},
            "free_text": {
                "type": "boolean",
                "description": "Whether the caller may write an answer of their own (default true).",
            },
        },
        "required": ["question"],
        "additionalProperties": false,
    });
    ToolSpec {
        name: ASK.to_owned(),
        description: "Asks the caller questions and waits for the answers, which are the result. Use it only if you \
            cannot continue without them: decisions that are not yours, or facts that only the caller knows. Ask \
            everything that you need at once."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "questions": {"type": "array", "items": question, "minItems": 1, "maxItems": limit::QUESTIONS_MAX},
            },
            "required": ["questions"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}
