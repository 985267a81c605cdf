//! The JSON of the API: what comes in, strictly, and what goes out.
//!
//! Shared by `http`, `stream`, `webhook` and `cli`. Unknown input fields are
//! refused; `metadata`, `input` objects, `refs` and `raw` travel verbatim.

pub mod admin;
pub mod agent;
pub mod budget;
pub mod context;
pub mod control;
pub mod credential;
pub mod delta;
pub mod environment;
pub mod error;
pub mod event;
pub mod id;
pub mod key;
pub mod limits;
pub mod listing;
pub mod operation;
pub mod organization;
pub mod page;
pub mod price;
pub mod sandbox;
pub mod schedule;
pub mod session;
pub mod source;
pub mod trigger;
pub mod turn;
pub mod webhook;

pub use error::{ErrorBody, ErrorType};
pub use page::Page;

/// Tells a field that is `null` from one that is absent.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// For a field that is true unless the caller says otherwise.
fn yes() -> bool {
    true
}

/// Refuses a number in a small structure that a signed counter cannot hold: JSON
/// clients disagree on what lies beyond, and sums must not overflow.
fn countable<T: serde::Serialize>(value: &T, _context: &()) -> garde::Result {
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
        Ok(_) | Err(_) => Err(garde::Error::new(format!("has a number above {}", i64::MAX))),
    }
}

/// Refuses an object whose JSON is larger than `METADATA_BYTES_MAX`.
fn small_object(object: &serde_json::Map<String, serde_json::Value>, _context: &()) -> garde::Result {
    use crate::base::limit::METADATA_BYTES_MAX;

    let bytes = serde_json::to_vec(object).map_or(usize::MAX, |json| json.len());
    if bytes <= METADATA_BYTES_MAX {
        Ok(())
    } else {
        Err(garde::Error::new(format!("is {bytes} bytes of JSON; at most {METADATA_BYTES_MAX} are kept")))
    }
}
