//! `ask`: a question to the caller. It ends the turn and needs no sandbox.
//!
//! Called by the catalog for its spec. The harness itself appends the question as an event; the
//! answer is the caller's next message.

use serde_json::json;

use super::Done;
use crate::{
    base::limit,
    domain::tool::{ASK, Replay, ToolSpec},
};

pub(super) fn spec() -> ToolSpec {
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

/// Returns the result of the call; the answer is the caller's next message.
pub(super) fn put() -> Done {
    Done::ok("The question was sent to the caller. The answer will be the next message.")
}
