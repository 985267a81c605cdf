//! Division of bytes into messages: lines of JSON.

use serde_json::Value;

/// Divides bytes into messages, however they arrive.
#[derive(Default)]
pub(super) struct Lines {
    /// Bytes of a line that is not complete.
    pub rest: Vec<u8>,
}

impl Lines {
    /// Returns the messages of the lines that are complete now. Lines that are no JSON objects are left out: servers
    /// should print none, and some do.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Value> {
        let mut messages = Vec::new();
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            self.rest.extend_from_slice(part);
            if parts.peek().is_some() {
                let message = serde_json::from_slice(&self.rest).ok().filter(Value::is_object);
                messages.extend(message);
                self.rest.clear();
            }
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_messages_however_they_arrive() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"{\"a\":1}\n{\"b\""), [json!({ "a": 1 })]);
        assert_eq!(lines.take(b":2}"), [] as [Value; 0]);
        assert_eq!(lines.take(b"\nstarted\n\n[1]\n{\"c\":3}\n"), [json!({ "b": 2 }), json!({ "c": 3 })]);
        assert!(lines.rest.is_empty());
    }
}
