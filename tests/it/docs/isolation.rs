//! docs/isolation.md held against the scripts and the tests that it names.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

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
    let known = known_tests();
    for name in named {
        assert!(known.contains(name), "no test is called {name}");
    }
}

/// Names of the tests that run: those of this program, as it lists them, and unit tests of sandboxes and of name resolution.
fn known_tests() -> BTreeSet<String> {
    let mut program = Command::new(env::current_exe().expect("this program"));
    let listed = program.args(["--list", "--format", "terse"]).output().expect("it lists its tests");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let of_program = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let mut all: BTreeSet<String> =
        of_program.map(|path| path.rsplit("::").next().unwrap_or(path).to_owned()).collect();
    assert!(all.len() > 500, "{} tests", all.len());
    let mut directories = ["src/node", "src/sandbox", "src/net"]
        .map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .to_vec();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else {
                all.extend(unit_tests(&fs::read_to_string(&path).expect("a source")));
            }
        }
    }
    all
}

/// Functions with the attribute of a test.
fn unit_tests(source: &str) -> Vec<String> {
    let (mut is_test, mut found) = (false, Vec::new());
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            continue;
        }
        let line = line.strip_prefix("async ").unwrap_or(line);
        if let Some((name, _)) = line.strip_prefix("fn ").and_then(|rest| rest.split_once('('))
            && is_test
        {
            found.push(name.to_owned());
        }
        is_test = false;
    }
    found
}
