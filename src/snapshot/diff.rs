//! Line diffs of two contents: counts, and patches in the unified format.

use std::{
    collections::HashMap,
    fmt::Write,
    time::{Duration, Instant},
};

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

/// Contents above this size, in bytes, have no line diff.
pub const DIFF_BYTES_MAX: usize = 256 << 10;
/// Time after which a diff is no longer the shortest: the rest counts as replaced.
const DEADLINE: Duration = Duration::from_millis(50);
/// Unchanged lines that a patch shows before and after a change.
const CONTEXT_LINES: usize = 3;

/// Counts the lines that were added and deleted. A changed line is both.
///
/// `None` for a content that is not text (it has a NUL byte or is not UTF-8) or above [`DIFF_BYTES_MAX`].
pub fn count(before: &[u8], after: &[u8]) -> Option<(u32, u32)> {
    let diff = Diff::new(before, after)?;
    let (mut additions, mut deletions) = (0, 0);
    for op in diff.ops.iter().filter(|op| op.tag() != DiffTag::Equal) {
        additions += op.new_range().len();
        deletions += op.old_range().len();
    }
    Some((u32::try_from(additions).ok()?, u32::try_from(deletions).ok()?))
}

/// Returns a patch that `git apply` accepts; empty if no line differs.
///
/// Its paths begin with `a/` and `b/`. Without `before` the file was added, without `after` deleted. `None` if a content
/// has no line diff (see [`count`]) or the patch would be longer than `bytes_max`.
pub fn patch(path: &[u8], before: Option<&[u8]>, after: Option<&[u8]>, bytes_max: usize) -> Option<String> {
    let diff = Diff::new(before.unwrap_or_default(), after.unwrap_or_default())?;
    let name = |content: Option<&[u8]>, prefix| match content {
        Some(_) => file_name(prefix, path),
        None => "/dev/null".to_owned(),
    };
    let header = format!("--- {}\n+++ {}\n", name(before, "a/"), name(after, "b/"));
    let mut patch = String::new();
    for hunk in group_diff_ops(diff.ops, CONTEXT_LINES) {
        if hunk.iter().all(|op| op.tag() == DiffTag::Equal) {
            continue;
        }
        if patch.is_empty() {
            patch.push_str(&header);
        }
        let (first, last) = (hunk.first()?, hunk.last()?);
        let old = lines_of(first.old_range().start, last.old_range().end);
        let new = lines_of(first.new_range().start, last.new_range().end);
        writeln!(patch, "@@ -{old} +{new} @@").expect("writing to a string cannot fail");
        for op in hunk {
            let (tag, old, new) = op.as_tag_tuple();
            let is_equal = tag == DiffTag::Equal;
            push_lines(if is_equal { ' ' } else { '-' }, &diff.before[old], &mut patch);
            push_lines('+', if is_equal { &[] } else { &diff.after[new] }, &mut patch);
        }
        if patch.len() > bytes_max {
            return None;
        }
    }
    Some(patch)
}

/// The lines of two contents, with their ends, and what differs.
struct Diff<'a> {
    before: Vec<&'a str>,
    after: Vec<&'a str>,
    ops: Vec<DiffOp>,
}

impl<'a> Diff<'a> {
    fn new(before: &'a [u8], after: &'a [u8]) -> Option<Self> {
        let deadline = Instant::now() + DEADLINE;
        let (before, after) = (lines(before)?, lines(after)?);
        // Equal lines get equal numbers, so that no comparison takes longer than another.
        let mut numbers = HashMap::new();
        let mut number = |lines: &[&'a str]| -> Vec<usize> {
            let numbered = lines.iter().map(|line| {
                let next = numbers.len();
                *numbers.entry(*line).or_insert(next)
            });
            numbered.collect()
        };
        let (old, new) = (number(&before), number(&after));
        let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
        Some(Self { before, after, ops })
    }
}

/// Splits a text after each line feed, as `git` and `patch` do: a carriage return is a part of its line.
fn lines(content: &[u8]) -> Option<Vec<&str>> {
    if content.len() > DIFF_BYTES_MAX || content.contains(&0) {
        return None;
    }
    Some(str::from_utf8(content).ok()?.split_inclusive('\n').collect())
}

/// Formats a range of lines for a hunk. An empty range begins at the line before it.
fn lines_of(start: usize, end: usize) -> String {
    match end.saturating_sub(start) {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        count => format!("{},{count}", start + 1),
    }
}

fn push_lines(mark: char, lines: &[&str], patch: &mut String) {
    for line in lines {
        patch.push(mark);
        patch.push_str(line);
        if !line.ends_with('\n') {
            patch.push_str("\n\\ No newline at end of file\n");
        }
    }
}

/// Formats a path for a patch as git does: quoted if it is not plain text, so that no name can add lines.
fn file_name(prefix: &str, path: &[u8]) -> String {
    let is_special = |one: char| one.is_control() || matches!(one, '"' | '\\');
    match str::from_utf8(path) {
        // The tab ends a name with spaces.
        Ok(path) if !path.contains(is_special) => {
            let end = if path.contains(' ') { "\t" } else { "" };
            format!("{prefix}{path}{end}")
        }
        _ => {
            let mut name = format!("\"{prefix}");
            for byte in path {
                match byte {
                    b'"' | b'\\' => name.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => name.push(char::from(*byte)),
                    _ => write!(name, "\\{byte:03o}").expect("writing to a string cannot fail"),
                }
            }
            name.push('"');
            name
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts of few lines, so that two of them have lines in common.
    fn texts() -> impl Strategy<Value = String> {
        let line = prop::sample::select(vec!["a\n", "b\n", "\n", "a\r\n", "c\rd\n", "ä\n", "-- e\n"]);
        let end = prop::sample::select(vec!["", "", "a", "\r"]);
        (prop::collection::vec(line, 0..40), end).prop_map(|(lines, end)| lines.concat() + end)
    }

    /// Applies a patch as the format says, and checks that it fits.
    fn applied(before: &str, patch: &str) -> String {
        let old: Vec<_> = before.split_inclusive('\n').collect();
        let (mut after, mut at) = (String::new(), 0);
        let mut lines = patch.split_inclusive('\n').peekable();
        let mut rest = (0, 0);
        while let Some(line) = lines.next() {
            let is_last = lines.peek().is_some_and(|next| next.starts_with('\\'));
            let (mark, text) = line.split_at(1);
            let text = if is_last { text.trim_end_matches('\n') } else { text };
            match mark {
                _ if rest == (0, 0) && line.starts_with("@@ -") => {
                    let mut words = line.split(' ').skip(1);
                    let mut range = || {
                        let word = &words.next().unwrap()[1..];
                        let (start, count) = word.split_once(',').unwrap_or((word, "1"));
                        let (start, count): (usize, usize) = (start.parse().unwrap(), count.parse().unwrap());
                        (if count == 0 { start } else { start - 1 }, count)
                    };
                    let ((start, old_count), (_, new_count)) = (range(), range());
                    after.extend(old[at..start].iter().copied());
                    (at, rest) = (start, (old_count, new_count));
                }
                " " | "-" if rest.0 > 0 => {
                    assert_eq!(old[at], text);
                    (at, rest.0) = (at + 1, rest.0 - 1);
                    if mark == " " {
                        after.push_str(text);
                        rest.1 -= 1;
                    }
                }
                "+" if rest.1 > 0 => {
                    after.push_str(text);
                    rest.1 -= 1;
                }
                "\\" => assert_eq!(line, "\\ No newline at end of file\n"),
                _ => assert!(after.is_empty() && (line.starts_with("--- ") || line.starts_with("+++ "))),
            }
        }
        assert_eq!(rest, (0, 0));
        after.extend(old[at..].iter().copied());
        after
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_one_content_from_the_other(before in texts(), after in texts()) {
            let (old, new) = (before.as_bytes(), after.as_bytes());
            let patch = patch(b"f", Some(old), Some(new), usize::MAX).unwrap();
            prop_assert_eq!(applied(&before, &patch), after.clone());
            prop_assert_eq!(patch.is_empty(), before == after);
            let marked = |mark: char| patch.lines().skip(2).filter(|line| line.starts_with(mark)).count();
            let (additions, deletions) = count(old, new).unwrap();
            prop_assert_eq!((additions as usize, deletions as usize), (marked('+'), marked('-')));
        }
    }

    #[test]
    fn a_patch_has_the_format_of_git() {
        let before = b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\nlast";
        let after = b"1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n11\n12\nlast\n";
        let expected = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n\
                        @@ -10,4 +10,4 @@\n 10\n 11\n 12\n-last\n\\ No newline at end of file\n+last\n";
        let patch = |before, after| patch(b"src/a.rs", before, after, 1 << 10).unwrap();
        assert_eq!(patch(Some(before), Some(after)), expected);
        let added = "--- /dev/null\n+++ b/src/a.rs\n@@ -0,0 +1,2 @@\n+x\n+y\n";
        assert_eq!(patch(None, Some(b"x\ny\n")), added);
        let deleted = "--- a/src/a.rs\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";
        assert_eq!(patch(Some(b"x\n"), None), deleted);
        assert_eq!(patch(None, Some(b"")), "");
    }

    #[test]
    fn contents_that_are_no_text_or_too_large_have_no_diff() {
        let large = vec![b'x'; DIFF_BYTES_MAX + 1];
        for content in [b"a\0b".as_slice(), b"\xff\n", &large] {
            assert_eq!(count(content, b"a\n"), None);
            assert_eq!(count(b"a\n", content), None);
            assert_eq!(patch(b"f", None, Some(content), usize::MAX), None);
        }
        assert_eq!(count(&large[1..], b""), Some((0, 1)));
        let patch = |bytes_max| patch(b"f", None, Some(b"a\n"), bytes_max);
        let length = patch(usize::MAX).unwrap().len();
        assert!(patch(length).is_some() && patch(length - 1).is_none());
    }

    #[test]
    fn shuffled_lines_have_a_diff_that_adds_up() {
        let text = |seed: usize| -> String {
            let numbers = (0..60_000_usize).map(|number| number.wrapping_mul(2_654_435_761) ^ seed);
            numbers.map(|number| format!("{}\n", number % 997)).collect()
        };
        let (before, after) = (text(0), text(0x5_5555));
        let (before, after) = (&before[..DIFF_BYTES_MAX / 2], &after[..DIFF_BYTES_MAX / 2]);
        let (additions, deletions) = count(before.as_bytes(), after.as_bytes()).unwrap();
        let lines = |text: &str| text.split_inclusive('\n').count();
        assert_eq!(lines(before) + additions as usize, lines(after) + deletions as usize);
        assert!(additions as usize <= lines(after) && deletions as usize <= lines(before));
    }

    #[test]
    fn a_name_adds_no_line_to_a_patch() {
        let names: [(&[u8], &str); 5] = [
            (b"a b/c", "a/a b/c\t"),
            ("ä".as_bytes(), "a/ä"),
            (b"a\n+++ b/x", r#""a/a\012+++ b/x""#),
            (br#"a"b\c"#, r#""a/a\"b\\c""#),
            (b"\xff", r#""a/\377""#),
        ];
        for (path, name) in names {
            assert_eq!(file_name("a/", path), name);
        }
    }
}
