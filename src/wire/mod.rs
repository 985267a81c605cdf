//! The JSON of the API: what comes in, strictly, and what goes out.
//!
//! Shared by `http`, `stream`, `webhook` and `cli`. Unknown input fields are
//! refused; `metadata`, `input` objects, `refs` and `raw` travel verbatim.

pub mod agent;
pub mod credential;
pub mod error;
pub mod event;
pub mod id;
pub mod page;
pub mod session;
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
