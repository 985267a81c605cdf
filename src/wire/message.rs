//! Request and response bodies of messages to a session.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{content::ContentInput, metadata::small_object};
use crate::{
    base::{
        json,
        limit::{IDEMPOTENCY_KEY_BYTES_MAX, MESSAGE_CONTENT_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX},
    },
    domain::{Event, EventId, Session, SessionId, Status},
};

/// Message to the agent: `text`, `content` or both, or an `envelope` that contains the text.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Steer {
    #[garde(inner(length(bytes, min = 1, max = TEXT_BYTES_MAX)))]
    pub text: Option<String>,
    /// Parts of the message behind `text`: texts, images and documents.
    #[garde(length(max = MESSAGE_CONTENT_MAX), dive)]
    #[serde(default, deserialize_with = "json::objects")]
    pub content: Vec<ContentInput>,
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub envelope: Option<Envelope>,
    /// Deduplicates the message: sending the same key again returns the first result. Keys that client tokens send are
    /// apart from those of API keys.
    #[garde(inner(length(bytes, min = 1, max = IDEMPOTENCY_KEY_BYTES_MAX)))]
    pub idempotency_key: Option<String>,
    /// Handling of a running turn. Absent, the message waits for the next turn, unless the running one waits for the
    /// answer to a single question: then it is the answer, if it has no `output_schema`.
    #[garde(skip)]
    pub mode: Option<SteerMode>,
    /// JSON Schema (2020-12) of the output of the turn that starts with the message; overrides that of the session. Not with
    /// `mode`: `steer`.
    #[garde(skip)]
    pub output_schema: Option<Map<String, Value>>,
}

/// Effect of a message on a running turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SteerMode {
    /// The message waits for the next turn.
    Queue,
    /// The running turn reads the message before its next model call. If it comes too late, it waits for the next turn.
    Steer,
    /// Ends the running turn at its next interruption point; the message starts the next one.
    Interrupt,
}

/// Message as delivered by another system.
#[derive(Debug, Deserialize, Serialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Envelope {
    /// Id assigned by the source. Together with `source` it deduplicates the message.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Conversation of the source: its name, or an object.
    #[garde(dive)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
    #[garde(length(bytes, min = 1, max = TEXT_BYTES_MAX))]
    pub text: String,
    /// References of the message, passed through unchanged.
    #[garde(custom(small_object))]
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub refs: Map<String, Value>,
    /// The source's original message, stored unchanged.
    #[garde(custom(small_value))]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    pub raw: Option<Value>,
}

/// Conversation of another system, by its name or as a reference.
#[derive(Debug, Deserialize, Serialize, Validate, ToSchema)]
#[serde(untagged, expecting = "expected a string, or an object with `source` and `ref`")]
pub(crate) enum Conversation {
    Name(#[garde(length(bytes, max = NAME_BYTES_MAX))] String),
    Reference(
        #[garde(dive)]
        #[serde(deserialize_with = "json::object")]
        ConversationRef,
    ),
}

/// Reference to a conversation of another system.
#[derive(Debug, Deserialize, Serialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationRef {
    /// System that the conversation belongs to, for example `slack`.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub source: String,
    /// Id of the conversation in that system.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub r#ref: String,
}

/// Result of sending a message, or of another request for a turn.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Steered {
    pub event: EventRef,
    pub session: SessionRef,
}

impl Steered {
    /// The answer to a command that appended `event`; `session` is as it is after it.
    pub(crate) fn of(event: &Event, session: &Session) -> Self {
        Self {
            event: EventRef { id: event.draft.id, seq: event.seq, processed_at: None },
            session: SessionRef { id: session.id, status: session.status, head: session.head },
        }
    }
}

/// Reference to an input event, by id and `seq`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EventRef {
    pub id: EventId,
    pub seq: i64,
    /// Time at which a turn consumed the input: null, because the message was accepted just now.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub processed_at: Option<OffsetDateTime>,
}

/// Reference to a session, with its status and the `seq` of its newest event.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionRef {
    pub id: SessionId,
    pub status: Status,
    pub head: i64,
}

fn small_value(value: &Option<Value>, context: &()) -> garde::Result {
    match value {
        Some(value) => small_object(&Map::from_iter([("raw".to_owned(), value.clone())]), context),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_a_name_or_an_object_and_no_array_of_its_fields() {
        assert!(serde_json::from_str::<Conversation>(r#""C1""#).is_ok());
        assert!(serde_json::from_str::<Conversation>(r#"{"source": "slack", "ref": "C1"}"#).is_ok());
        assert!(serde_json::from_str::<Conversation>(r#"["slack", "C1"]"#).is_err());
    }
}
