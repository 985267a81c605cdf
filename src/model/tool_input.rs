//! Normalization of tool names, ids and arguments that a model wrote.
//!
//! Called by the adapters. A history may be sent to a provider for months. A call with truncated or
//! malformed arguments must become an object, and its name must match the pattern, or no provider
//! accepts that history again.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{
    base::{limit, seal, text},
    domain::{Block, tool::MALFORMED_INPUT},
};

/// Parses arguments into an object; anything else is stored as text under one key.
///
/// Empty text means no arguments, because both providers send it so.
pub(super) fn parse(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Value::Object(map),
        Ok(_) | Err(_) => wrap(text),
    }
}

/// Returns arguments that are already a value as an object.
pub(super) fn object(value: &Value) -> Value {
    match value {
        Value::Object(_) => value.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            wrap(&value.to_string())
        }
    }
}

/// Returns a word that matches `^[a-zA-Z0-9_-]{1,64}$`; `text` itself if it matches.
pub(super) fn word(text: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    let word: String = text
        .chars()
        .map(|character| if fits(character) { character } else { '_' })
        .take(limit::TOOL_NAME_BYTES_MAX)
        .collect();
    if word.is_empty() { "_".to_owned() } else { word }
}

/// Returns a call id that every provider accepts: `[a-zA-Z0-9_-]`, at most 40 characters.
///
/// A valid id is kept; any other is replaced by its digest, so that equal histories stay equal and
/// different ids stay different.
pub(super) fn call_id(id: &str) -> String {
    if id.len() <= limit::CALL_ID_BYTES_MAX && id == word(id) {
        return id.to_owned();
    }
    format!("call_{}", &text::hex(&seal::sha256(id.as_bytes()))[..32])
}

/// Returns whether every call of a response has an id and all ids differ.
pub(super) fn ids_are_distinct(blocks: &[Block]) -> bool {
    let mut seen = HashSet::new();
    blocks.iter().all(|block| match block {
        Block::ToolCall(call) => !call.call_id.is_empty() && seen.insert(call.call_id.as_str()),
        Block::Text { .. } | Block::Thinking { .. } => true,
    })
}

fn wrap(text: &str) -> Value {
    Value::Object(Map::from_iter([(MALFORMED_INPUT.to_owned(), Value::from(text))]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_always_an_object_and_nothing_is_lost() {
        assert_eq!(parse(""), json!({}));
        assert_eq!(parse(r#"{"b":1,"a":2}"#).to_string(), r#"{"b":1,"a":2}"#);
        assert_eq!(parse(r#"{"command": "ls"#), json!({"_malformed": r#"{"command": "ls"#}));
        assert_eq!(parse("[1]"), json!({"_malformed": "[1]"}));
        assert_eq!(object(&json!("x")), json!({"_malformed": "\"x\""}));
    }

    #[test]
    fn a_foreign_id_is_kept_where_it_fits_and_never_meets_another() {
        assert_eq!(call_id("toolu_01A-b"), "toolu_01A-b");
        let (one, two) = (call_id(&format!("{}1", "x".repeat(90))), call_id(&format!("{}2", "x".repeat(90))));
        assert!(one != two && one.len() <= limit::CALL_ID_BYTES_MAX, "{one} {two}");
        assert_ne!(call_id("a.b"), call_id("a:b"));
    }

    #[test]
    fn a_name_always_fits_the_pattern() {
        assert_eq!(word("bash"), "bash");
        assert_eq!(word("repo browser.open"), "repo_browser_open");
        assert_eq!(word(""), "_");
        assert_eq!(word(&"é".repeat(99)), "_".repeat(64));
    }
}
