//! What a model wrote as the name and the arguments of a tool call, made sendable.
//!
//! Called by the adapters. A history goes back to a provider for months: a call
//! whose arguments are cut or malformed must stay an object, and its name must
//! fit the pattern, or no provider accepts that history any more.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{
    base::{limit, seal, text},
    domain::{Block, tool::MALFORMED_INPUT},
};

/// The arguments as an object; anything else is kept as text under one key.
///
/// Nothing at all means no arguments, as both providers send it.
pub(super) fn parse(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Value::Object(map),
        Ok(_) | Err(_) => wrap(text),
    }
}

/// The arguments as an object, when they are a value already.
pub(super) fn object(value: &Value) -> Value {
    match value {
        Value::Object(_) => value.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            wrap(&value.to_string())
        }
    }
}

/// A word that fits `^[a-zA-Z0-9_-]{1,64}$`, equal to `text` when that does.
pub(super) fn word(text: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    let word: String = text
        .chars()
        .map(|character| if fits(character) { character } else { '_' })
        .take(limit::TOOL_NAME_BYTES_MAX)
        .collect();
    if word.is_empty() { "_".to_owned() } else { word }
}

/// A call's id that every provider takes: `[a-zA-Z0-9_-]`, at most 40 characters.
///
/// An id that fits stays as it is; any other becomes its digest, so that equal
/// histories stay equal and two ids stay two.
pub(super) fn call_id(id: &str) -> String {
    if id.len() <= limit::CALL_ID_BYTES_MAX && id == word(id) {
        return id.to_owned();
    }
    format!("call_{}", &text::hex(&seal::sha256(id.as_bytes()))[..32])
}

/// Whether each call of an answer has an id, and none has another's.
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
