//! Sizes: a file tells one story. Functions are bounded by clippy's `too_many_lines`.

use super::{Source, hold, rust, sources};

const LINES_MAX: usize = 500;

fn tree() -> Vec<Source> {
    rust(&["src", "init/src", "tests", "build.rs"])
}

#[test]
fn a_file_opens_with_its_description() {
    let silent = tree().into_iter().filter(|source| !source.text.starts_with("//! "));
    hold("a file without //! in its first line", silent.map(|source| source.path).collect());
}

#[test]
fn a_file_stays_below_the_wall() {
    let sources = tree();
    let lines = |source: &Source| source.text.lines().count();
    let long = sources.iter().filter(|source| lines(source) > LINES_MAX);
    let long = long.map(|source| format!("{} has {}", source.path, lines(source))).collect();
    hold("a file over 500 lines", long);
}

#[test]
fn a_module_with_children_is_a_directory() {
    let paths: Vec<_> = tree().into_iter().map(|source| source.path).collect();
    let beside = paths.iter().filter(|path| {
        let directory = format!("{}/", path.trim_end_matches(".rs"));
        paths.iter().any(|other| other.starts_with(&directory))
    });
    hold("foo.rs beside foo/ (use foo/mod.rs)", beside.cloned().collect());
}

#[test]
fn nothing_is_left_for_later() {
    let marks = ["TODO", "FIXME", "XXX", "HACK"];
    let tree = sources(&["src", "init/src", "build.rs", "migrations"], &[".rs", ".sql"]);
    let marked = tree.iter().flat_map(|source| {
        let found = source.lines().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
        found.map(|(number, _)| format!("{}:{number}", source.path))
    });
    hold("a mark for later", marked.collect());
}
