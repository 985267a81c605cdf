//! Truncation of output for the model, with a notice.
//!
//! Called by every tool. The beginning and the end are kept: one shows what happened, the other how
//! it ended.

use crate::base::{limit, text};

/// Bytes reserved for the notices around an output.
const NOTE_BYTES: usize = 600;
/// Bytes kept at each end of a truncated output.
pub(super) const END_BYTES: usize = (limit::TOOL_OUTPUT_BYTES_MAX - NOTE_BYTES) / 2;

/// Returns the text if it fits, else its two ends with `advice` between them.
pub fn cap(text: &str, advice: &str) -> String {
    if text.len() <= limit::TOOL_OUTPUT_BYTES_MAX - NOTE_BYTES {
        return text.to_owned();
    }
    let (head, tail) = (text::truncate(text, END_BYTES), ending(text, END_BYTES));
    join(head, tail, text.len() as u64, advice)
}

/// Joins the two ends of an output of `total` bytes.
pub(super) fn join(head: &str, tail: &str, total: u64, advice: &str) -> String {
    let cut = total.saturating_sub((head.len() + tail.len()) as u64);
    format!("{head}\n\n[… {cut} of {total} bytes are left out here. {advice} …]\n\n{tail}")
}

/// Returns the longest suffix of at most `bytes_max` bytes at a character boundary.
pub(super) fn ending(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_keeps_both_ends_and_says_what_is_missing() {
        let long = format!("begin {} end", "é".repeat(40_000));
        let capped = cap(&long, "Ask for less.");
        assert!(capped.len() <= limit::TOOL_OUTPUT_BYTES_MAX, "{}", capped.len());
        assert!(capped.starts_with("begin é") && capped.ends_with("é end"));
        assert!(capped.contains("of 80010 bytes are left out here. Ask for less."), "{capped}");
        assert_eq!(cap("short", "x"), "short");
    }

    #[test]
    fn bytes_that_are_no_text_become_text() {
        assert_eq!(text::printable(b"a\0\xFFb"), "a\u{FFFD}\u{FFFD}b");
        assert_eq!(ending("äé", 3), "é");
    }
}
