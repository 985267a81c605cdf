//! Conversions between Rust and columns: enums as text, counters as bigint, levels as smallint.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Error, Result};
use crate::domain::Level;

/// Returns the word of a unit variant, as serde spells it.
pub(crate) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        other => unreachable!("only enums of unit variants become words, not {other:?}"),
    }
}

/// Parses a word to its variant.
pub(crate) fn from_word<T: DeserializeOwned>(word: &str) -> Result<T> {
    serde_json::from_value(Value::String(word.to_owned())).map_err(|error| Error::Corrupt(error.to_string()))
}

/// Serializes a value for a `json` column.
pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types serialize")
}

/// Parses the text of a `json` column.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Corrupt(error.to_string()))
}

/// Converts a level to its number: 1 user, 2 progress, 3 internal.
pub(crate) fn threshold(level: Level) -> i16 {
    match level {
        Level::User => 1,
        Level::Progress => 2,
        Level::Internal => 3,
    }
}

/// Converts a number to its level.
pub(crate) fn level(threshold: i16) -> Result<Level> {
    match threshold {
        1 => Ok(Level::User),
        2 => Ok(Level::Progress),
        3 => Ok(Level::Internal),
        other => Err(Error::Corrupt(format!("level {other}"))),
    }
}

/// Converts a counter for a `bigint` column.
pub(crate) fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a counter from a `bigint` column.
pub(crate) fn uncount(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// Replaces U+0000, which a text column cannot store.
///
/// Otherwise a provider's text could keep a turn from ending. The event itself is JSON and keeps
/// the text verbatim.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_a_nul_can_be_stored_and_any_other_stays_as_it_is() {
        assert_eq!(storable("a\0b\0"), "a\u{fffd}b\u{fffd}");
        assert_eq!(storable("Zürich → 東京"), "Zürich → 東京");
    }
}
