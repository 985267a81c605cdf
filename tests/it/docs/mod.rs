//! The documentation held against the code: what it names exists, what exists it names.

mod failure_matrix;
mod figures;
mod isolation;
mod limits;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sojourn::{
    base::Origin,
    domain::{Actor, Body, Event, Notice},
    wire::{ErrorBody, ErrorType},
};

use crate::support::{
    contract::DOCUMENT,
    pages::{ERRORS, EVENTS, check_event, page, text},
};

/// Every type that a log may hold: the words by which one that is unknown is refused.
fn types_of_a_log() -> BTreeSet<String> {
    let refused = serde_json::from_value::<Body>(json!({ "type": "no such type", "body": {} }));
    let message = refused.expect_err("there is no such type").to_string();
    let known = message.split_once("expected one of ").expect("it lists those that there are").1;
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Notices to the webhooks of an organization that are in no log.
fn notices() -> Vec<Notice> {
    let origin = Origin::system();
    vec![
        Notice::session_deleted(origin.id(), Actor::system(), &origin),
        Notice::disabled("whk_x".to_owned(), None, "gone", &origin),
        Notice::test(origin.id(), Actor::system(), &origin),
        Notice::schedule_paused(origin.id(), origin.id(), 5, &origin),
        Notice::credential_refused(origin.id(), "invalid_grant", &origin),
    ]
}

#[test]
fn every_type_of_event_has_its_page_and_every_page_its_type() {
    let of_log = types_of_a_log();
    assert!(of_log.contains("turn.completed"), "{of_log:?}");
    let told: BTreeSet<_> = notices().iter().map(|notice| notice.kind().to_owned()).collect();
    let pages: BTreeSet<_> = EVENTS.keys().cloned().collect();
    assert_eq!(of_log.union(&told).cloned().collect::<BTreeSet<_>>(), pages);
    let index = page("docs/events.md");
    assert_eq!(*index.words("type"), of_log, "the table of docs/events.md");
    for (kind, page) in &*EVENTS {
        assert!(page.text.starts_with(&format!("# `{kind}`\n")), "docs/events/{kind}.md has another title");
        let row = index.text.lines().find(|line| line.contains(&format!("(events/{kind}.md)")));
        let row = row.unwrap_or_else(|| panic!("docs/events.md has no link to {kind}"));
        let levels = page.said("Level: ");
        assert!(!levels.is_empty(), "docs/events/{kind}.md says no level");
        let is_there =
            |level: &String| row.split(" | ").nth(1).is_some_and(|cell| cell.contains(level.as_str()));
        assert!(
            told.contains(kind) || levels.iter().all(is_there),
            "docs/events.md has another level: {row}"
        );
    }
}

#[test]
fn the_example_of_a_type_is_an_event_of_it() {
    for kind in types_of_a_log() {
        let example = &EVENTS[&kind].example;
        assert_eq!(example["type"], *kind, "docs/events/{kind}.md");
        check_event(example);
        let event: Event = serde_json::from_value(example.clone())
            .unwrap_or_else(|error| panic!("the example of docs/events/{kind}.md: {error}"));
        let body = &event.draft.body;
        let levels = EVENTS[&kind].said("Level: ");
        let level = serde_json::to_value(body.level()).expect("a word");
        assert!(levels.contains(level.as_str().expect("a word")), "{kind} is {level}");
        assert_eq!(
            serde_json::to_value(body).expect("JSON")["body"],
            example["body"],
            "docs/events/{kind}.md"
        );
    }
    for notice in notices() {
        let (kind, event) = (notice.kind(), notice.event());
        check_event(&event);
        let example = &EVENTS[kind].example;
        assert_eq!(example["type"], kind);
        let event_names =
            |event: &Value| event.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(event_names(&example["event"]), event_names(&event), "docs/events/{kind}.md");
        assert_eq!(
            event_names(&example["event"]["body"]),
            event_names(&event["body"]),
            "docs/events/{kind}.md"
        );
    }
}

#[test]
fn every_type_of_error_has_its_page_with_its_status_and_its_codes() {
    let types: BTreeSet<_> = DOCUMENT["components"]["schemas"]["ErrorType"]["enum"]
        .as_array()
        .expect("the types")
        .iter()
        .map(|word| word.as_str().expect("a word").to_owned())
        .collect();
    let pages: BTreeSet<_> = ERRORS.keys().cloned().collect();
    assert_eq!(types, pages);
    let index = page("docs/errors.md");
    assert_eq!(*index.words("type"), types, "the table of docs/errors.md");
    for (kind, page) in &*ERRORS {
        let named: ErrorType = serde_json::from_value(json!(kind)).expect("a type");
        let status = sojourn::http::status(named).as_u16();
        assert!(page.text.starts_with(&format!("# `{kind}`\n\nStatus {status}. ")), "docs/errors/{kind}.md");
        assert!(
            index.text.contains(&format!("| [`{kind}`](errors/{kind}.md) | {status} |")),
            "{kind}: docs/errors.md"
        );
        let example: ErrorBody = serde_json::from_value(page.example.clone()).expect("an error");
        assert_eq!(example.error.kind, named, "docs/errors/{kind}.md");
        let written = codes(kind);
        let missing: Vec<_> = written.difference(page.words("code")).collect();
        assert!(missing.is_empty(), "docs/errors/{kind}.md does not name {missing:?}");
        let source = sources();
        let unknown: Vec<_> =
            page.words("code").iter().filter(|code| !source.contains(&format!("\"{code}\""))).collect();
        assert!(unknown.is_empty(), "docs/errors/{kind}.md names {unknown:?}, which nothing answers");
    }
}

/// The codes that `http` gives to errors of a type, by the words of its sources.
fn codes(kind: &str) -> BTreeSet<String> {
    if !["conflict", "unprocessable"].contains(&kind) {
        // Others are made without one, or name a field.
        return BTreeSet::new();
    }
    let source = sources();
    let call = format!("::{kind}(");
    let calls = source.split(&call).skip(1);
    calls
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned))
        .collect()
}

fn sources() -> String {
    sources_of(&["src/http"])
}

/// All that stands in the files of some directories.
fn sources_of(directories: &[&str]) -> String {
    let mut found = String::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<_> = directories.iter().map(|directory| root.join(directory)).collect();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push_str(&std::fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    found
}

#[test]
fn every_page_stands_in_the_index() {
    let index = text("docs/README.md");
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let names = std::fs::read_dir(directory).expect("docs").map(|entry| entry.expect("an entry").file_name());
    let names = names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".md"));
    let lost: Vec<_> =
        names.filter(|name| name != "README.md" && !index.contains(&format!("]({name}"))).collect();
    assert!(lost.is_empty(), "docs/README.md does not name {lost:?}");
}

/// Pages for people who change the service.
const DEVELOPMENT: [&str; 9] = [
    "CONTRIBUTING.md",
    "docs/development/README.md",
    "docs/development/adding.md",
    "docs/development/architecture.md",
    "docs/development/debugging.md",
    "docs/development/glossary.md",
    "docs/development/release.md",
    "docs/development/testing.md",
    "migrations/README.md",
];

#[test]
fn a_link_between_files_of_the_repository_leads_to_a_file() {
    for file in DEVELOPMENT.into_iter().chain(["README.md", "docs/README.md"]) {
        let base = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = text(file);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with(['#', '/']) && !link.contains("://")) {
            let path = base.with_file_name(link.split('#').next().expect("a path"));
            assert!(path.exists(), "{file}: {link}");
        }
    }
}

#[test]
fn a_path_of_the_development_pages_exists() {
    const BELOW: [&str; 9] =
        ["src/", "init/", "migrations/", "tests/", "docs/", "web/src/", "clients/", "scripts/", "deploy/"];
    const GENERATED: &str = "web/src/api/schema.d.ts";
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_placeholder = |path: &str| {
        let mut parts = path.split(['/', '.', '_']);
        path.contains('*')
            || parts.any(|part| part.len() > 2 && part.chars().all(|one| one.is_ascii_uppercase()))
    };
    let mut lost = Vec::new();
    for file in DEVELOPMENT {
        for path in text(file).split('`').skip(1).step_by(2) {
            let is_path =
                BELOW.iter().any(|below| path.starts_with(below)) && !path.contains(char::is_whitespace);
            if is_path && path != GENERATED && !is_placeholder(path) && !top.join(path).exists() {
                lost.push(format!("{file}: {path}"));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn a_name_of_the_development_pages_is_in_the_file_that_they_name() {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut checked, mut lost) = (0, Vec::new());
    for file in DEVELOPMENT {
        let page = text(file);
        let parts: Vec<_> = page.split('`').collect();
        for place in (1..parts.len()).step_by(2).filter(|place| parts.get(place + 1) == Some(&" in ")) {
            let path = top.join(parts[place + 2]);
            let Ok(source) = std::fs::read_to_string(path) else { continue };
            let name = parts[place].trim_end_matches(['!', '(', ')']);
            checked += 1;
            if !source.contains(name.rsplit("::").next().expect("a segment")) {
                lost.push(format!("{file}: {name} in {}", parts[place + 2]));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(checked >= 10, "the pages were not understood: {checked} names");
}
