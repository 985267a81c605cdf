//! docs/isolation.md held against the scripts and the tests that it names.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{sandbox, support::pages::text};

#[test]
fn what_is_tried_is_on_the_page_and_what_is_on_the_page_is_tried() {
    let text = text("docs/isolation.md");
    let (scripts, tests) = text.split_once("## Played by tests").expect("two tables");
    let rows: BTreeSet<&str> =
        scripts.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")).collect();
    let tried: BTreeSet<&str> = sandbox::tried().chain(["script"]).collect();
    assert_eq!(rows, tried);
    let (tests, _) = tests.split_once("\n## ").expect("a chapter after it");
    let named: Vec<&str> = tests.split('`').skip(1).step_by(2).filter(|name| name.contains('_')).collect();
    assert!(named.len() > 20, "{named:?}");
    let sources = sources();
    for name in named {
        assert!(sources.contains(&format!("fn {name}(")), "no test is called {name}");
    }
}

fn sources() -> String {
    let mut all = String::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")];
    directories.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sandbox"));
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else {
                all.push_str(&fs::read_to_string(path).expect("a source"));
            }
        }
    }
    all
}
