//! Rules about the sources themselves: imports between modules, sizes, vocabulary.
//!
//! Rules that a lint can check are in `clippy.toml` and `[workspace.lints]`. Each test here reads the tree as text
//! and names every line that breaks its rule.

mod cycles;
mod imports;
mod shape;
mod vocabulary;

use std::{fs, path::Path};

/// A text file of the repository.
pub struct Source {
    /// From the top of the repository, such as `src/http/mod.rs`.
    path: String,
    pub text: String,
}

impl Source {
    /// Lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// Lines of code: without comments, up to the unit tests at the end of the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_tests = self.path.ends_with("/tests.rs");
        let code = self.lines().take_while(move |(_, line)| !is_tests && line.trim() != "#[cfg(test)]");
        code.map(|(number, line)| (number, line.split("//").next().unwrap_or(line)))
    }

    /// Lines of code that contain `text`.
    fn places(&self, text: &str) -> Vec<String> {
        let found = self.code().filter(|(_, line)| line.contains(text));
        found.map(|(number, _)| format!("{}:{number}", self.path)).collect()
    }
}

/// Files below these paths whose names end with one of `endings`, in order of their paths.
fn sources(below: &[&str], endings: &[&str]) -> Vec<Source> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut open: Vec<_> = below.iter().map(|path| top.join(path)).collect();
    while let Some(path) = open.pop() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if !["node_modules", "dist", "target", "venv", "__pycache__"].contains(&name.as_str()) {
                let entries = fs::read_dir(&path).expect("a directory of the repository");
                open.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending))
            && !["package-lock.json", "schema.d.ts"].contains(&name.as_str())
        {
            let text = fs::read_to_string(&path).expect("a source is UTF-8");
            let path = path.strip_prefix(top).expect("below the top").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
    assert!(!found.is_empty(), "no sources below {below:?}");
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Rust files below these paths.
pub fn rust(below: &[&str]) -> Vec<Source> {
    sources(below, &[".rs"])
}

/// Fails with every place that breaks a rule.
fn hold(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}
