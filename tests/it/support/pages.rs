//! Contents of the pages in `docs/events` and `docs/errors`.
//!
//! Every event and every error that a test receives is checked against its page: a type without a page, or an
//! undocumented field or code, fails the test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::LazyLock,
};

use serde_json::Value;

/// Machine-readable contents of a page.
#[derive(Debug, Default)]
pub struct Page {
    pub text: String,
    /// Code words of the first column of each table, by its heading.
    pub tables: BTreeMap<String, BTreeSet<String>>,
    /// The first JSON block.
    pub example: Value,
}

/// Pages of event types, by type.
pub static EVENTS: LazyLock<BTreeMap<String, Page>> = LazyLock::new(|| pages("docs/events"));
/// Pages of error types, by type.
pub static ERRORS: LazyLock<BTreeMap<String, Page>> = LazyLock::new(|| pages("docs/errors"));
/// Codes with which a turn may end.
static TURN_ERRORS: LazyLock<BTreeSet<String>> =
    LazyLock::new(|| page("docs/errors.md").words("code").clone());

/// Text of a file of the repository.
pub fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A file of the repository as a page.
pub fn page(file: &str) -> Page {
    let text = text(file);
    let mut page = Page { example: example(&text), ..Page::default() };
    let (mut heading, mut is_inside) = (String::new(), false);
    for line in text.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            is_inside &= line.starts_with('|');
            continue;
        };
        let first = row.split(" | ").next().unwrap_or_default();
        if !is_inside {
            (heading, is_inside) = (first.to_owned(), true);
            continue;
        }
        let words = first.split('`').skip(1).step_by(2).map(str::to_owned);
        page.tables.entry(heading.clone()).or_default().extend(words);
    }
    Page { text, ..page }
}

impl Page {
    /// Code words of the line with this prefix.
    pub fn said(&self, beginning: &str) -> BTreeSet<String> {
        let line = self.text.lines().find_map(|line| line.strip_prefix(beginning)).unwrap_or_default();
        let sentence = line.split('.').next().unwrap_or_default();
        sentence.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Code words of a column; empty when there is no such table.
    pub fn words(&self, heading: &str) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.tables.get(heading).unwrap_or(&NONE)
    }
}

/// Fails unless the event matches its page.
#[track_caller]
pub fn check_event(event: &Value) {
    let kind = event["type"].as_str().unwrap_or_default();
    // A delta of a growing answer is not a stored event.
    if kind == "agent.message.delta" {
        return;
    }
    let page = EVENTS.get(kind).unwrap_or_else(|| panic!("docs/events/{kind}.md is missing: {event}"));
    let level = event["level"].as_str().unwrap_or_default();
    assert!(
        page.said("Level: ").contains(level),
        "docs/events/{kind}.md does not document the level {level}"
    );
    // The truncated form of a large body has other fields.
    if event.get("content_ref").is_some() {
        return;
    }
    for field in event["body"].as_object().expect("a body is an object").keys() {
        assert!(
            page.words("field").contains(field),
            "docs/events/{kind}.md does not document the field `{field}`: {event}"
        );
    }
    if let Some(code) = event["body"]["error"]["code"].as_str() {
        assert!(TURN_ERRORS.contains(code), "docs/errors.md does not document the turn error code `{code}`");
    }
}

/// Fails unless the error matches its page.
#[track_caller]
pub fn check_error(error: &Value) {
    let kind = error["type"].as_str().unwrap_or_default();
    let page = ERRORS.get(kind).unwrap_or_else(|| panic!("docs/errors/{kind}.md is missing: {error}"));
    if let Some(code) = error["code"].as_str() {
        assert!(
            page.words("code").contains(code),
            "docs/errors/{kind}.md does not document the code `{code}`: {error}"
        );
    }
}

fn pages(directory: &str) -> BTreeMap<String, Page> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = fs::read_dir(path).expect(directory).map(|entry| entry.expect(directory).file_name());
    let of_file = |name: std::ffi::OsString| {
        let name = name.into_string().expect("a name in UTF-8");
        let kind = name.strip_suffix(".md").unwrap_or_else(|| panic!("{directory}/{name} is no page"));
        (kind.to_owned(), page(&format!("{directory}/{name}")))
    };
    entries.map(of_file).collect()
}

fn example(text: &str) -> Value {
    let block = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    block.map_or(Value::Null, |block| serde_json::from_str(block).unwrap_or_default())
}
