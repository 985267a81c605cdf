//! Calls that a model repeats without making progress.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::tool::{SESSION_WAIT, SUBMIT_OUTPUT, ToolCall};
use crate::base::{limit, seal::sha256};

/// Calls that were made again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repetition {
    /// Number of calls that repeat: 1 for the same call in a row, 2 for A B A B, up to 4.
    pub calls: u32,
    /// How often they were made.
    pub times: u32,
    /// Whether the turn ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_turn: bool,
}

/// The newest calls since the turn's last input, each by its hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentCalls(Vec<u64>);

impl RecentCalls {
    /// Adds a call. Outputs have a bound of their own. After a wait, counting begins anew: sessions went on meanwhile,
    /// so the same call may have another result.
    pub fn push(&mut self, call: &ToolCall) {
        match &*call.tool {
            SUBMIT_OUTPUT => return,
            SESSION_WAIT => return self.clear(),
            _ => self.0.push(hash(call)),
        }
        let surplus = self.0.len().saturating_sub(LENGTH);
        self.0.drain(..surplus);
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the number of calls that the newest ones are `times` times, in the same order, if they are.
    pub fn repeated(&self, times: u32) -> Option<u32> {
        let repeats = |calls: &u32| {
            let (period, length) = (*calls as usize, (*calls * times) as usize);
            self.0.len() >= length && {
                let newest = &self.0[self.0.len() - length..];
                newest.iter().zip(&newest[period..]).all(|(earlier, later)| earlier == later)
            }
        };
        (1..=limit::LOOP_CALLS_MAX).find(repeats)
    }
}

/// Longest sequence that can be a repetition.
const LENGTH: usize = (limit::LOOP_CALLS_MAX * limit::LOOP_REPEATS.2) as usize;

/// Hash of tool and arguments, whatever the order of their fields. Stored in folds, so it never changes.
fn hash(call: &ToolCall) -> u64 {
    let mut text = call.tool.clone();
    text.push('\n');
    write_sorted(&mut text, &call.input);
    let [a, b, c, d, e, f, g, h, ..] = sha256(text.as_bytes());
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn write_sorted(text: &mut String, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<_> = fields.iter().collect();
            names.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (name, value) in names {
                text.push_str(&Value::String(name.clone()).to_string());
                text.push(':');
                write_sorted(text, value);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_sorted(text, item);
                text.push(',');
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn repeated(calls: &str, times: u32) -> Option<u32> {
        let mut recent = RecentCalls::default();
        for name in calls.split(' ') {
            let tool = if name.len() == 1 { "bash" } else { name }.to_owned();
            let input = json!({ "command": name });
            recent.push(&ToolCall { call_id: String::new(), tool, input });
        }
        recent.repeated(times)
    }

    #[test]
    fn only_calls_that_end_in_repetitions_repeat() {
        for (calls, times, expected) in [
            ("a", 3, None),
            ("a a", 3, None),
            ("a a a", 3, Some(1)),
            ("b a a a", 3, Some(1)),
            ("a a b a", 3, None),
            ("a b a b a b", 3, Some(2)),
            ("b a b a b", 3, None),
            ("a b a b", 2, Some(2)),
            ("a b c a b c a b c", 3, Some(3)),
            ("x a b c d a b c d a b c d", 3, Some(4)),
            ("a b c d e a b c d e a b c d e", 3, None),
            ("a a b a a b a a b", 3, Some(3)),
            ("submit_output submit_output submit_output", 3, None),
            ("a submit_output a a", 3, Some(1)),
            ("session_wait session_wait session_wait", 3, None),
            ("a session_wait a session_wait a session_wait", 3, None),
            ("session_wait a a a", 3, Some(1)),
        ] {
            assert_eq!(repeated(calls, times), expected, "{calls} {times}");
        }
        let long = vec!["a b c d"; 20].join(" ");
        assert_eq!(repeated(&long, limit::LOOP_REPEATS.2), Some(4));
    }

    #[test]
    fn the_order_of_fields_is_no_difference() {
        let call = |input: Value| ToolCall { call_id: String::new(), tool: "t".to_owned(), input };
        let same = [
            json!({ "a": [1, { "b": 2, "c": "x" }], "d": null }),
            json!({ "d": null, "a": [1, { "c": "x", "b": 2 }] }),
        ];
        assert_eq!(hash(&call(same[0].clone())), hash(&call(same[1].clone())));
        for other in
            [json!({}), json!({ "a": "1" }), json!({ "a": 1 }), json!(["a", 1]), json!({ "a": [1], "b": 2 })]
        {
            assert_ne!(hash(&call(same[0].clone())), hash(&call(other)));
        }
    }
}
