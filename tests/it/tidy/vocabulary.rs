//! Vocabulary: no retired word of `docs/development/glossary.md`, and no new word in settings, metrics and
//! JSON fields without a look at it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Source, hold, sources};
use crate::support::{contract::DOCUMENT, pages};

/// Words that the glossary replaces, as whole words and as parts of identifiers.
const RETIRED: &[&str] = &[
    "box",
    "boxes",
    "hut",
    "huts",
    "tenant",
    "tenants",
    "recipe",
    "recipes",
    "surroundings",
    "wish",
    "wishes",
    "errand",
    "errands",
    "letter",
    "letters",
    "courier",
    "couriers",
    "standing",
    "standings",
    "purse",
    "grip",
    "grips",
    "scribe",
    "flight",
    "flights",
    "desk",
    "desks",
    "shelf",
    "shelves",
    "keeper",
    "keepers",
    "outlet",
    "outlets",
    "patient",
    "siege",
    "drill",
    "mend",
    "mends",
    "mended",
    "mending",
    "timekeeper",
    "revisit",
    "revisits",
    "room",
    "rooms",
    "hints",
    "cancelled",
    "cancelling",
    "pen",
    "pens",
    "door",
    "doors",
    "house",
    "houses",
];
/// Identifiers and phrases of others, in which such a word has its ordinary meaning.
const ALLOWED: &[&str] = &[
    "Box<",
    "Box::",
    "Box<dyn",
    "BoxError",
    "BoxBody",
    "BoxFuture",
    "BoxStream",
    "viewBox",
    "boxed",
    "checkbox",
    "box-",
    "-box",
    "in flight",
    "In flight",
    "in-flight",
    "IN_FLIGHT",
    "in_flight",
    "multi-tenant",
    "cross-tenant",
    "dead letter",
    "dead_letter",
    "DeadLetter",
    "letters, digits",
    "letters and digits",
    "lower-case letters",
    "of letters",
    "is_cancelled",
    "run_until_cancelled",
    "letter-spacing",
    "cancelled()",
    // Methods of the Model Context Protocol.
    "notifications/cancelled",
    "get_type_hints",
];
/// Files that may use a retired word, each with its reason.
const FILES: [(&str, &str); 4] = [
    ("docs/development/glossary.md", "it lists the retired words"),
    ("CHANGELOG.md", "it names what was renamed"),
    ("src/config/mod.rs", "it refuses settings by their retired names"),
    ("tests/it/tidy/vocabulary.rs", "this list"),
];

fn tree() -> Vec<Source> {
    let below = [
        "src",
        "init",
        "migrations",
        "docs",
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "web/src",
        "web/tests",
        "clients",
        "tests",
        "deploy",
        "scripts",
        "Makefile",
        "Dockerfile",
        "build.rs",
        "Cargo.toml",
    ];
    let endings = [
        ".rs",
        ".sql",
        ".md",
        ".ts",
        ".tsx",
        ".mjs",
        ".py",
        ".sh",
        ".yaml",
        ".json",
        ".css",
        ".toml",
        "Makefile",
        "Dockerfile",
        "setup",
        "test",
        "transcript",
        "dashboard",
        "run",
    ];
    sources(&below, &endings)
}

/// The words of a text; an identifier counts by its parts.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for one in text.chars().chain([' ']) {
        let starts = !one.is_alphabetic() || (one.is_uppercase() && was_lower);
        if starts && !word.is_empty() {
            words.push(std::mem::take(&mut word).to_lowercase());
        }
        if one.is_alphabetic() {
            word.push(one);
        }
        was_lower = one.is_lowercase();
    }
    words
}

#[test]
fn no_retired_word_is_used() {
    let mut broken = Vec::new();
    for source in tree() {
        if FILES.iter().any(|(path, _)| *path == source.path) {
            continue;
        }
        for (number, line) in source.lines() {
            let mut line = line.to_owned();
            for allowed in ALLOWED {
                line = line.replace(allowed, " ");
            }
            let found = words(&line).into_iter().find(|word| RETIRED.contains(&word.as_str()));
            broken.extend(found.map(|word| format!("{}:{number} says {word}", source.path)));
        }
    }
    hold("a word that docs/development/glossary.md retires", broken);
}

#[test]
fn settings_metrics_and_fields_use_known_words() {
    let known: BTreeSet<String> =
        pages::text("tests/it/tidy/vocabulary.txt").split_whitespace().map(str::to_owned).collect();
    let mut names: BTreeSet<String> = BTreeSet::new();
    for source in sources(&["src"], &[".rs"]) {
        for prefix in ["\"SOJOURN_", "\"sojourn_"] {
            for (at, _) in source.text.match_indices(prefix) {
                let rest = &source.text[at + prefix.len()..];
                let is_name = |one: &char| one.is_ascii_alphanumeric() || *one == '_';
                names.insert(rest.chars().take_while(is_name).collect());
            }
        }
    }
    // Settings of earlier versions are named to be refused.
    names.retain(|name| !name.starts_with("BOX_"));
    fields(&DOCUMENT, &mut names);
    let unknown: BTreeSet<_> =
        names.iter().flat_map(|name| words(name)).filter(|word| !known.contains(word)).collect();
    hold(
        "a new word in a setting, a metric or a JSON field: check it against the glossary, then add it to \
         tests/it/tidy/vocabulary.txt",
        unknown.into_iter().collect(),
    );
    let retired = known.iter().filter(|word| RETIRED.contains(&word.as_str()));
    hold("a retired word in tests/it/tidy/vocabulary.txt", retired.cloned().collect());
}

/// Names of the properties of every object in an API description.
fn fields(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if let Some(Value::Object(properties)) = object.get("properties") {
                names.extend(properties.keys().cloned());
            }
            object.values().for_each(|value| fields(value, names));
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

#[test]
fn an_identifier_is_read_by_its_parts() {
    assert_eq!(words("LiveBoxes box_dir BOX_MAX"), ["live", "boxes", "box", "dir", "box", "max"]);
    assert_eq!(words("HTTPServer v3"), ["httpserver", "v"]);
}
