//! `ask`: a question to the caller. It ends the turn and needs no sandbox.
//!
//! Called by the catalogue. The answer is the caller's next message.

use serde::Deserialize;
use serde_json::json;

use super::Question;
use crate::{
    base::limit,
    domain::tool::{Replay, ToolSpec},
};

#[derive(Deserialize)]
pub(super) struct Args {
    question: String,
    #[serde(default)]
    options: Vec<String>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "ask".to_owned(),
        description:
            "Asks the caller a question and ends the turn until there is an answer. Use it only when you \
            cannot go on without one: a decision that is not yours, or something that only the caller knows."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "minLength": 1, "description": "The question, whole and by itself."},
                "options": {
                    "type": "array", "items": {"type": "string", "minLength": 1},
                    "maxItems": limit::ASK_OPTIONS_MAX,
                    "description": "Answers to choose from, if there are a few likely ones.",
                },
            },
            "required": ["question"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

pub(super) fn question(args: Args) -> Question {
    Question { text: args.question, options: args.options }
}
