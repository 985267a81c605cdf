//! Division of bytes into messages: lines of JSON.

use serde_json::Value;

use crate::base::limit::MCP_MESSAGE_BYTES_MAX;

/// Divides bytes into messages, however they arrive.
#[derive(Default)]
pub(super) struct Lines {
    /// Bytes of a line that is not complete.
    rest: Vec<u8>,
    /// Bytes of the line that were left out, because it is too long.
    cut_bytes: usize,
}

impl Lines {
    /// Returns the messages of the lines that are complete now. Lines that are no JSON objects are left out: servers
    /// should print none, and some do. So are those that are longer than a message may be.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Value> {
        let mut messages = Vec::new();
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            if self.cut_bytes > 0 || self.rest.len() + part.len() > MCP_MESSAGE_BYTES_MAX {
                self.cut_bytes += std::mem::take(&mut self.rest).len() + part.len();
            } else {
                self.rest.extend_from_slice(part);
            }
            if parts.peek().is_some() {
                messages.extend(self.message().filter(|_| self.cut_bytes == 0));
                (self.rest, self.cut_bytes) = (Vec::new(), 0);
            }
        }
        messages
    }

    /// Returns the message of the line that is not complete, if it is one.
    pub(super) fn message(&self) -> Option<Value> {
        serde_json::from_slice(&self.rest).ok().filter(Value::is_object)
    }

    /// Bytes of the line that is not complete.
    pub(super) fn open_bytes(&self) -> u64 {
        (self.rest.len() + self.cut_bytes) as u64
    }

    /// Returns whether the line that is not complete is longer than a message may be.
    pub(super) fn is_too_long(&self) -> bool {
        self.cut_bytes > 0
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
        assert_eq!(lines.open_bytes(), 0);
        let long = vec![b' '; MCP_MESSAGE_BYTES_MAX];
        assert_eq!(lines.take(b"{\"d\":4}"), [] as [Value; 0]);
        assert_eq!(lines.take(&long), [] as [Value; 0]);
        assert!(lines.is_too_long() && lines.open_bytes() > MCP_MESSAGE_BYTES_MAX as u64);
        assert_eq!(lines.take(b"\n{\"e\":5}\n"), [json!({ "e": 5 })], "the long line is left out");
    }
}
