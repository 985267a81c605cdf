//! Circles of files inside a module: files that import each other, directly or through others.
//!
//! A name that `mod.rs` re-exports counts as the file that defines it; a re-export is no import. Calls of methods
//! do not count: an `impl` may be spread over files.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, hold, rust};

/// Path of a module, such as `store::sessions::record`, in segments.
type Path = Vec<String>;

/// A name that a file imports.
struct Import {
    path: Path,
    name: String,
    is_reexport: bool,
}

/// A source file with its imports and the paths in its code.
struct File {
    path: String,
    module: Path,
    imports: Vec<Import>,
    paths: Vec<Path>,
}

fn segments(path: &str) -> Path {
    path.split("::").map(|one| one.trim().to_owned()).collect()
}

/// Reads the names of a tree such as `a::{b, c::{self, d as e}}`.
fn names(tree: &str, above: &[String], is_reexport: bool, found: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let head = head.trim().trim_end_matches("::");
        let above = [above, &if head.is_empty() { Vec::new() } else { segments(head) }].concat();
        let mut depth = 0;
        let parts = group[..group.rfind('}').unwrap_or(group.len())].split(|one: char| {
            depth += i32::from(one == '{') - i32::from(one == '}');
            one == ',' && depth == 0
        });
        parts.filter(|part| !part.trim().is_empty()).for_each(|part| names(part, &above, is_reexport, found));
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
    let mut path = [above, &segments(path)].concat();
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), |name| name.trim().to_owned());
    found.push(Import { path, name, is_reexport });
}

/// Paths of two segments or more.
fn paths(code: &str) -> Vec<Path> {
    let is_word = |one: char| one.is_alphanumeric() || one == '_' || one == ':';
    let words = code.split(|one| !is_word(one)).map(|word| word.trim_end_matches(':'));
    words.filter(|word| word.contains("::") && !word.starts_with(':')).map(segments).collect()
}

impl File {
    fn read(source: &Source) -> Self {
        let code: String = source.code().flat_map(|(_, line)| [line, "\n"]).collect();
        let (mut imports, mut rest) = (Vec::new(), String::new());
        for statement in code.split_inclusive(';') {
            let start = statement.lines().position(|line| {
                let line = line.trim_start();
                line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "))
            });
            let lines: Vec<_> = statement.lines().collect();
            let (before, import) = lines.split_at(start.unwrap_or(lines.len()));
            before.iter().for_each(|line| rest.extend([line, "\n"]));
            let import = import.join(" ");
            if let Some((visibility, tree)) = import.split_once("use ") {
                names(tree.trim_end_matches(';'), &[], !visibility.trim().is_empty(), &mut imports);
            }
        }
        let path = source.path.trim_start_matches("src/").to_owned();
        let module = path.trim_end_matches(".rs").split('/').filter(|one| *one != "mod").map(str::to_owned);
        Self { module: module.collect(), imports, paths: paths(&rest), path }
    }

    /// Returns a path from the top of the crate; `None` for another crate or a local name.
    fn absolute(&self, path: &[String], files: &BTreeMap<Path, File>) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&self.module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|one| *one == "super").count();
                let above = self.module.len().checked_sub(ups)?;
                Some([&self.module[..above], &path[ups..]].concat())
            }
            child => {
                let inner = [self.module.as_slice(), &[child.to_owned()]].concat();
                files.contains_key(&inner).then(|| [&self.module, path].concat())
            }
        }
    }

    /// Returns the files that this one imports from.
    fn imported(&self, files: &BTreeMap<Path, File>) -> BTreeSet<Path> {
        let mut found = BTreeSet::new();
        let mut add = |path: &[String]| found.extend(defined_in(path, files, 0));
        let of_import = |import: &Import| self.absolute(&import.path, files);
        for import in self.imports.iter().filter(|import| !import.is_reexport) {
            // A module is imported where its items are used.
            if let Some(path) = of_import(import).filter(|path| !files.contains_key(path)) {
                add(&path);
            }
        }
        for path in &self.paths {
            let alias = self.imports.iter().find(|import| import.name == path[0]).and_then(of_import);
            let path = match alias {
                Some(of) => Some([of.as_slice(), &path[1..]].concat()),
                None => self.absolute(path, files),
            };
            path.iter().for_each(|path| add(path));
        }
        found.remove(&self.module);
        found
    }
}

/// Returns the file that defines the item of an absolute path, through re-exports.
fn defined_in(path: &[String], files: &BTreeMap<Path, File>, depth: usize) -> Option<Path> {
    let length = (1..=path.len()).rev().find(|length| files.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let Some((name, below)) = rest.split_first().filter(|_| depth < 8) else { return Some(module.to_vec()) };
    let file = &files[module];
    let import = file.imports.iter().find(|import| import.name == *name);
    let through = import.and_then(|import| file.absolute(&import.path, files));
    let through = through.and_then(|to| defined_in(&[&to, below].concat(), files, depth + 1));
    through.or_else(|| Some(module.to_vec()))
}

/// Returns the files of each circle inside a top-level module.
fn circles(files: &BTreeMap<Path, File>) -> BTreeSet<Vec<String>> {
    let within = |file: &File| -> BTreeSet<Path> {
        file.imported(files).into_iter().filter(|other| other[0] == file.module[0]).collect()
    };
    let edges: BTreeMap<_, _> = files.iter().map(|(module, file)| (module, within(file))).collect();
    let reached = |from: &Path| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(edges[next].iter().filter(|other| seen.insert((*other).clone())));
        }
        seen
    };
    let reach: BTreeMap<_, _> = files.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &Path| -> Vec<String> {
        let others = reach[module].iter().filter(|other| reach[other].contains(module));
        others.map(|other| files[other].path.clone()).collect()
    };
    files.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

fn files(sources: &[Source]) -> BTreeMap<Path, File> {
    sources.iter().map(File::read).map(|file| (file.module.clone(), file)).collect()
}

#[test]
fn files_of_a_module_import_each_other_in_one_direction() {
    let sources: Vec<_> =
        rust(&["src"]).into_iter().filter(|source| !source.path.ends_with("tests.rs")).collect();
    let circles = circles(&files(&sources));
    assert!(sources.len() > 300, "the sources were not found");
    let circles = circles.iter().map(|circle| circle.join(" ")).collect();
    hold("files that import each other (move what they share)", circles);
}

#[test]
fn a_circle_is_found_through_re_exports_and_groups() {
    let source = |path: &str, text: &str| Source { path: format!("src/{path}"), text: text.to_owned() };
    let sources = [
        source("a/mod.rs", "mod b;\nmod c;\nmod d;\npub use b::{Bee, Other as Named};"),
        source("a/b.rs", "use super::{\n    c::{self, Cup},\n};\nfn f() { c::g() }"),
        source("a/c.rs", "use crate::a::Bee;\nuse other::Thing;"),
        source("a/d.rs", "use super::Named;\nfn f() { super::c::g() }"),
    ];
    assert_eq!(circles(&files(&sources)).into_iter().collect::<Vec<_>>(), [["a/b.rs", "a/c.rs"]]);
    let one_way = &sources[..];
    let kept: Vec<_> = one_way.iter().filter(|source| source.path != "src/a/c.rs").map(File::read).collect();
    let kept = kept.into_iter().map(|file| (file.module.clone(), file)).collect();
    assert!(circles(&kept).is_empty());
}
