//! Parser of server-sent events (WHATWG HTML, section 9.2.6).
//!
//! Called by `exchange` with network chunks; calls nothing. The chunk boundaries never change the
//! frames, and no input panics. The caller bounds the bytes of a whole response, which bounds the
//! buffer here.

/// One dispatched event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// Value of the last `event:` field; empty if there was none.
    pub event: String,
    /// All `data:` values, joined by line feeds.
    pub data: String,
}

/// A parser that buffers the incomplete end of the last chunk.
#[derive(Debug, Default)]
pub(super) struct Frames {
    line: Vec<u8>,
    // The last line ended with CR: a following LF belongs to it, even if it arrives in the next
    // chunk.
    after_cr: bool,
    first_line_read: bool,
    has_data: bool,
    frame: Frame,
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

impl Frames {
    /// Returns the frames that `chunk` completes, oldest first.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut rest = chunk;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (head, tail) = rest.split_at(at);
            let ends_with_cr = tail[0] == b'\r';
            let completes_crlf = self.after_cr && head.is_empty() && !ends_with_cr;
            rest = &tail[1..];
            self.after_cr = ends_with_cr;
            if completes_crlf {
                continue;
            }
            self.line.extend_from_slice(head);
            frames.extend(self.end_line());
        }
        if !rest.is_empty() {
            self.after_cr = false;
            self.line.extend_from_slice(rest);
        }
        frames
    }

    fn end_line(&mut self) -> Option<Frame> {
        let bytes = std::mem::take(&mut self.line);
        let mut line = bytes.as_slice();
        if !std::mem::replace(&mut self.first_line_read, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            return std::mem::take(&mut self.has_data).then_some(frame);
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
        match field {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(&value);
            }
            b"event" => self.frame.event = value.into_owned(),
            // `id` and `retry` are for browsers; a line without a field name is a comment.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(event: &str, data: &str) -> Frame {
        Frame { event: event.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn every_line_end_comment_and_field_of_the_standard_is_read() {
        let stream = b"\xEF\xBB\xBFevent: a\ndata: 1\n\n: ping\r\ndata:2\r\ndata:  3\r\n\r\nid: 7\n\ndata\r\rdata: cut";
        let frames = Frames::default().push(stream);
        assert_eq!(frames, [frame("a", "1"), frame("", "2\n 3"), frame("", "")]);
    }

    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "\n",
            "\r",
            "\r\n",
            "data",
            "event",
            ":",
            " ",
            "x",
            "data: {}\n\n",
            "\u{feff}",
            "é",
            ": c\n",
        ]);
        prop::collection::vec(piece, 0..60).prop_map(|all| all.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn the_cutting_into_chunks_never_changes_the_frames(
            stream in pieces(),
            cuts in prop::collection::vec(0usize..8, 1..80),
        ) {
            let whole = Frames::default().push(&stream);
            let mut parser = Frames::default();
            let (mut rest, mut cut) = (stream.as_slice(), cuts.iter().cycle());
            let mut parts = Vec::new();
            // A chunk may be empty; the last part takes the rest.
            for _ in 0..200 {
                let at = (*cut.next().expect("a cycle does not end")).min(rest.len());
                parts.extend(parser.push(&rest[..at]));
                rest = &rest[at..];
            }
            parts.extend(parser.push(rest));
            prop_assert_eq!(parts, whole);
        }

        #[test]
        fn garbage_never_panics(stream in prop::collection::vec(any::<u8>(), 0..400)) {
            Frames::default().push(&stream);
        }
    }
}
