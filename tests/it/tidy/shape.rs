//! Sizes: a file tells one story, a function one sentence of it.

use super::{
    hold,
    source::{Source, closing, line, sources},
};

const LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

fn tree() -> Vec<Source> {
    sources(&["src", "init/src", "tests", "build.rs"])
}

#[test]
fn a_file_opens_with_what_it_is() {
    let silent = tree().into_iter().filter(|source| !source.text.starts_with("//! "));
    hold("a file that does not say what it is", silent.map(|source| source.path).collect());
}

#[test]
fn a_file_stays_below_the_wall() {
    let sources = tree();
    let lines = |source: &Source| source.text.lines().count();
    let long = sources.iter().filter(|source| lines(source) > LINES_MAX);
    hold(
        "a file over the wall",
        long.map(|source| format!("{} has {}", source.path, lines(source))).collect(),
    );
    for (name, place) in [("src", "src/"), ("init", "init/"), ("tests", "tests/")] {
        let mut sizes: Vec<_> =
            sources.iter().filter(|source| source.path.starts_with(place)).map(lines).collect();
        sizes.sort_unstable();
        let at = |part: usize| sizes[(sizes.len() - 1) * part / 100];
        println!(
            "{name}: {} files, {} lines; a file has {} (median), {} (p90), {} (max)",
            sizes.len(),
            sizes.iter().sum::<usize>(),
            at(50),
            at(90),
            at(100)
        );
    }
}

#[test]
fn a_function_stays_readable() {
    let mut long = Vec::new();
    let mut sizes = Vec::new();
    for source in tree() {
        for (at, lines) in functions(&source) {
            sizes.push(lines);
            if lines > FUNCTION_LINES_MAX {
                long.push(format!("{} has {lines}", source.place(at)));
            }
        }
    }
    sizes.sort_unstable();
    let at = |part: usize| sizes[(sizes.len() - 1) * part / 100];
    println!("{} functions: {} (median), {} (p90), {} (max)", sizes.len(), at(50), at(90), at(100));
    hold("a function over 70 lines", long);
}

/// Each function with a body: where it begins, how many lines it has.
fn functions(source: &Source) -> Vec<(usize, usize)> {
    let code = &source.code;
    let names = code.match_indices("fn ").map(|(at, _)| at);
    let begins = |at: &usize| {
        let before = code[..*at].chars().next_back();
        let name = code[at + 3..].chars().next();
        before.is_none_or(|character| !character.is_alphanumeric() && character != '_')
            && name.is_some_and(|character| character.is_alphabetic() || character == '_')
    };
    let sized = |at: usize| {
        let end = code[at..].find(['{', ';'])? + at;
        let close = (code.as_bytes()[end] == b'{').then(|| closing(code, end))?;
        Some((at, line(code, close) - line(code, at) + 1))
    };
    names.filter(begins).filter_map(sized).collect()
}
