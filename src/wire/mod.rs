//! JSON types of the API: strictly validated requests, and responses.
//!
//! Used by `http`, `stream`, `webhook` and `cli`. Unknown input fields are rejected; `metadata`, `input`
//! objects, `refs` and `raw` are passed through verbatim.

pub(crate) mod action;
pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod budget;
pub(crate) mod capacity;
pub(crate) mod client_token;
pub(crate) mod content;
pub(crate) mod context;
pub(crate) mod control;
pub(crate) mod credential;
pub(crate) mod delta;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod import;
pub(crate) mod invoke;
pub(crate) mod key;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod message;
pub(crate) mod metadata;
pub(crate) mod operation;
pub(crate) mod organization;
pub(crate) mod page;
pub(crate) mod permission;
pub(crate) mod price;
pub(crate) mod sandbox;
pub(crate) mod schedule;
pub(crate) mod session;
pub(crate) mod skill;
pub(crate) mod source;
pub(crate) mod trigger;
pub(crate) mod turn;
pub(crate) mod webhook;

pub use error::{ErrorBody, ErrorType};
pub use page::Page;

/// Deserializes a field so that `null` differs from an absent field.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Builds settings of turns, or a change of them, from the fields of a request, which have the same names.
macro_rules! settings_of {
    ($kind:ident, $request:expr) => {
        $kind {
            ask: $request.ask,
            doom_loop: $request.doom_loop,
            output_schema: $request.output_schema.clone(),
            output_repairs: $request.output_repairs,
            compaction: $request.compaction.clone(),
            mcp_servers: $request.mcp_servers.clone(),
            fallback_models: $request.fallback_models.clone(),
            skills: $request.skills.clone(),
        }
    };
}
use settings_of;

/// Default of a field that is true when absent.
fn yes() -> bool {
    true
}

/// Rejects numbers above `i64::MAX`: JSON clients disagree on larger numbers, and sums must not overflow.
fn validate_numbers<T: serde::Serialize>(value: &T, _context: &()) -> garde::Result {
    fn beyond(value: &serde_json::Value) -> bool {
        use serde_json::Value;

        match value {
            Value::Number(number) => number.as_u64().is_some_and(|number| i64::try_from(number).is_err()),
            Value::Array(items) => items.iter().any(beyond),
            Value::Object(fields) => fields.values().any(beyond),
            Value::Null | Value::Bool(_) | Value::String(_) => false,
        }
    }

    match serde_json::to_value(value) {
        Ok(value) if !beyond(&value) => Ok(()),
        Ok(_) | Err(_) => Err(garde::Error::new(format!("contains a number above {}", i64::MAX))),
    }
}
