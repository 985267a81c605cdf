//! Input of a caller: a text, or an object.

use serde_json::{Map, Value};

use super::Stamp;
use crate::domain::{
    content::Content,
    event::{Body, Draft},
    ids::TurnId,
};

/// A message to the agent.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub text: String,
    /// The whole input, if it was an object.
    pub object: Option<Value>,
    /// The envelope without `text` and `refs`.
    pub envelope: Option<Map<String, Value>>,
    pub refs: Map<String, Value>,
    pub mode: InputMode,
    /// JSON Schema of the output of its turn.
    pub output_schema: Option<Map<String, Value>>,
    /// Its parts in order, if it has files.
    pub content: Vec<Content>,
}

/// Effect of a message on the running turn. Without one, all are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputMode {
    /// It waits for the next turn.
    #[default]
    Queue,
    /// The running turn reads it before its next model call.
    Steer,
    /// It ends the running turn first.
    Interrupt,
}

impl Input {
    /// Returns the event of the message, which joins a turn.
    pub(super) fn message(self, turn: TurnId, stamp: &Stamp) -> Draft {
        let Self { text, object: input, envelope, refs, mode, output_schema, content } = self;
        let steers = mode == InputMode::Steer;
        let body = Body::UserMessage { text, input, envelope, steers, output_schema, content };
        Draft { refs, ..stamp.draft(Some(turn), body) }
    }

    /// Parses input: a string, or an object with a `text` field.
    pub fn of(input: Value) -> Self {
        match input {
            Value::String(text) => Self { text, ..Self::default() },
            object => {
                let text = object.get("text").and_then(Value::as_str).map(str::to_owned);
                let refs = object.get("refs").and_then(Value::as_object).cloned().unwrap_or_default();
                Self {
                    text: text.unwrap_or_else(|| object.to_string()),
                    object: Some(object),
                    refs,
                    ..Self::default()
                }
            }
        }
    }
}
