//! JSON types of the API: strictly validated requests, and responses.
//!
//! Used by `http`, `stream`, `webhook` and `cli`. Unknown input fields are rejected; `metadata`, `input`
//! objects, `refs` and `raw` are passed through verbatim.

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
pub mod invoke;
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

/// Deserializes a field so that `null` differs from an absent field.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

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

/// Rejects an object whose JSON is larger than `METADATA_BYTES_MAX`.
fn small_object(object: &serde_json::Map<String, serde_json::Value>, _context: &()) -> garde::Result {
    use crate::base::limit::METADATA_BYTES_MAX;

    let bytes = serde_json::to_vec(object).map_or(usize::MAX, |json| json.len());
    if bytes <= METADATA_BYTES_MAX {
        Ok(())
    } else {
        Err(garde::Error::new(format!("is {bytes} bytes of JSON; at most {METADATA_BYTES_MAX} are allowed")))
    }
}
