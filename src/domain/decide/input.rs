//! Input of a caller: a text, or an object.

use serde_json::{Map, Value};

use crate::domain::event::Body;

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
    /// Returns the event of the message.
    pub(super) fn message(self) -> Body {
        let Self { text, object: input, envelope, mode, .. } = self;
        Body::UserMessage { text, input, envelope, steers: mode == InputMode::Steer }
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
