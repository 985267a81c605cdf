//! Validation of metadata and other free-form objects.

use serde_json::{Map, Value};

use crate::base::limit::METADATA_BYTES_MAX;

/// Rejects metadata that is too large or contains U+0000, which would make searches fail.
pub(crate) fn validate_metadata(metadata: &Map<String, Value>, context: &()) -> garde::Result {
    fn has_nul(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(has_nul),
            Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    if metadata.iter().any(|(name, value)| name.contains('\0') || has_nul(value)) {
        return Err(garde::Error::new("contains the character U+0000, which cannot be stored"));
    }
    small_object(metadata, context)
}

/// Rejects an object whose JSON is larger than `METADATA_BYTES_MAX`.
pub(super) fn small_object(object: &Map<String, Value>, _context: &()) -> garde::Result {
    let bytes = serde_json::to_vec(object).map_or(usize::MAX, |json| json.len());
    if bytes <= METADATA_BYTES_MAX {
        Ok(())
    } else {
        Err(garde::Error::new(format!("is {bytes} bytes of JSON; at most {METADATA_BYTES_MAX} are allowed")))
    }
}
