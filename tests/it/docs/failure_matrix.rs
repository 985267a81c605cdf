//! The failure matrix of docs/reliability.md held against the tests that it names.

use std::{fs, path::Path};

use crate::support::pages::text;

/// Whether a test or a path of the table exists.
fn exists(name: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some((module, test)) = name.rsplit_once("::") else { return root.join(name).exists() };
    let path = root.join("tests/it").join(module.replace("::", "/"));
    let files = [path.with_extension("rs"), path.join("mod.rs")];
    let source: String = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let is_test = |before: &str| {
        let attributes = before.lines().rev().take(2).collect::<String>();
        attributes.contains("#[test]") || attributes.contains("#[tokio::test")
    };
    source.split_once(&format!("fn {test}(")).is_some_and(|(before, _)| is_test(before))
}

#[test]
fn every_row_of_the_failure_matrix_names_tests_that_exist() {
    let page = text("docs/reliability.md");
    let section = page.split_once("## Failure matrix\n").expect("a section").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= 25, "{} rows", rows.len());
    for row in rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "docs/reliability.md: no test holds: {row}");
        for name in named {
            assert!(exists(name), "docs/reliability.md names {name}, which does not exist");
        }
    }
}

#[test]
fn a_test_is_found_by_its_full_name_only() {
    assert!(exists("docs::failure_matrix::a_test_is_found_by_its_full_name_only"));
    assert!(exists("tests/chaos"));
    // A function that is no test, another module, a path that does not exist.
    for name in
        ["docs::failure_matrix::exists", "docs::limits::a_test_is_found_by_its_full_name_only", "tests/none"]
    {
        assert!(!exists(name), "{name}");
    }
}
