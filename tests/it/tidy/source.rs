//! A source file with its comments, its literals and its tests told apart.
//!
//! No parser: a scanner that knows where comments and literals begin and end is
//! enough for rules about words, and reads the whole tree in milliseconds.

use std::{fs, path::Path};

/// One file of the tree.
pub struct Source {
    /// From the top of the repository, as in `src/http/mod.rs`.
    pub path: String,
    /// As it stands on the disk.
    pub text: String,
    /// Comments and literals blanked; lines and columns as in `text`.
    pub code: String,
    /// Comments blanked, literals kept.
    pub literals: String,
    /// Bytes of `code` that belong to unit tests.
    tests: Vec<(usize, usize)>,
}

impl Source {
    fn read(top: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a source is UTF-8");
        let name = path.strip_prefix(top).expect("below the top").to_str().expect("a plain name").to_owned();
        let (code, literals) = scan(&text);
        let whole = name.ends_with("/tests.rs") || name.contains("/tests/");
        let tests = if whole { vec![(0, code.len())] } else { unit_tests(&code) };
        Self { path: name, text, code, literals, tests }
    }

    /// Every place in the code, unit tests left out, where `word` stands whole.
    pub fn places(&self, word: &str) -> Vec<String> {
        self.find(&self.code, word)
    }

    /// The same with string literals looked into.
    pub fn places_in_literals(&self, word: &str) -> Vec<String> {
        self.find(&self.literals, word)
    }

    /// `src/x.rs:7`, for the byte at `at`.
    pub fn place(&self, at: usize) -> String {
        format!("{}:{}", self.path, line(&self.text, at))
    }

    /// Whether the byte at `at` belongs to a unit test.
    pub fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|(from, to)| (*from..*to).contains(&at))
    }

    fn find(&self, text: &str, word: &str) -> Vec<String> {
        let found = text.match_indices(word).map(|(at, _)| at).filter(|at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            let joins =
                |character: Option<char>| character.is_some_and(|one| one.is_alphanumeric() || one == '_');
            let (first, last) = (word.chars().next(), word.chars().next_back());
            let goes_on = joins(first) && joins(before) || joins(last) && joins(after);
            !goes_on
        });
        found.filter(|at| !self.is_test(*at)).map(|at| self.place(at)).collect()
    }
}

/// The sources below these folders (or the files themselves), by path.
pub fn sources(below: &[&str]) -> Vec<Source> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut open: Vec<_> = below.iter().map(|place| top.join(place)).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder of the repository");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(Source::read(top, &path));
        }
    }
    assert!(!found.is_empty(), "no sources below {below:?}");
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// The line of a byte, from 1.
pub fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The byte after the brace that closes the one at `open`.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Where modules stand that are compiled for tests only.
fn unit_tests(code: &str) -> Vec<(usize, usize)> {
    let marks = code.match_indices("#[cfg(test)]").map(|(at, _)| at);
    let module = |at: usize| {
        let rest = code[at..].find(['{', ';'])? + at;
        let end = if code.as_bytes()[rest] == b'{' { closing(code, rest) } else { rest + 1 };
        Some((at, end))
    };
    marks.filter_map(module).collect()
}

/// The text with comments and literals blanked, and with comments blanked.
fn scan(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let (mut code, mut literals) = (bytes.to_vec(), bytes.to_vec());
    let mut at = 0;
    while at < bytes.len() {
        let (end, is_comment) = match (bytes[at], bytes.get(at + 1)) {
            (b'/', Some(b'/')) => (text[at..].find('\n').map_or(bytes.len(), |end| at + end), true),
            (b'/', Some(b'*')) => (after_comment(bytes, at), true),
            (b'"', _) => (after_string(bytes, at), false),
            (b'r', Some(b'"' | b'#')) if !joins_word(bytes, at) => (after_raw(text, at), false),
            (b'\'', _) => (after_char(text, at), false),
            _ => (at + 1, false),
        };
        // One byte alone is no literal: a lifetime's quote, the r of a raw name.
        if end == at + 1 {
            at = end;
            continue;
        }
        blank(&mut code[at..end]);
        if is_comment {
            blank(&mut literals[at..end]);
        }
        at = end;
    }
    let text = |bytes| String::from_utf8(bytes).expect("whole characters were blanked");
    (text(code), text(literals))
}

fn joins_word(bytes: &[u8], at: usize) -> bool {
    // The b of br"..." is part of the literal's own prefix.
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') && bytes[at - 1] != b'b'
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

fn after_comment(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" if depth == 1 => return at + 2,
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    bytes.len()
}

fn after_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn after_raw(text: &str, start: usize) -> usize {
    let hashes = text[start + 1..].bytes().take_while(|byte| *byte == b'#').count();
    let open = start + 1 + hashes;
    if text.as_bytes().get(open) != Some(&b'"') {
        return start + 1; // r#type is a name
    }
    let close = format!("\"{}", "#".repeat(hashes));
    text[open + 1..].find(&close).map_or(text.len(), |end| open + 1 + end + close.len())
}

/// After a character; after the quote alone where it begins a lifetime.
fn after_char(text: &str, start: usize) -> usize {
    let mut characters = text[start + 1..].char_indices();
    match characters.next() {
        Some((_, '\\')) => text[start + 3..].find('\'').map_or(start + 1, |end| start + 3 + end + 1),
        Some(_) => match characters.next() {
            Some((at, '\'')) => start + 1 + at + 1,
            _ => start + 1,
        },
        None => start + 1,
    }
}

#[test]
fn the_scanner_tells_code_from_comments_and_literals() {
    let text = "let a = 'x'; // b\nfn f<'a>(s: &'a str) { r#\"c\"#; \"d\\\"e\"; '\\''; /* g /* h */ i */ j }";
    let (code, literals) = scan(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(
        code.split_whitespace().collect::<Vec<_>>().join(" "),
        "let a = ; fn f<'a>(s: &'a str) { ; ; ; j }"
    );
    assert!(literals.contains("d\\\"e") && literals.contains("\"c\"") && !literals.contains("g "));
    assert_eq!(closing("a { b { c } d } e", 2), 15);
}
