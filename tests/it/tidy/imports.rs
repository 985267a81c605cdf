//! Imports between modules, held against the table in `docs/development/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, hold, rust};
use crate::support::pages;

/// The composition root, which imports everything.
const ROOT: [&str; 6] = ["app", "config", "lib", "main", "shutdown", "telemetry"];

/// Each module with the modules that it may import.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let page = pages::text("docs/development/architecture.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let table: BTreeMap<_, _> = cells
        .filter(|cells| cells.len() == 3)
        .map(|cells| {
            let imports = cells[2].replace(['`', '-'], " ");
            (cells[0].replace('`', ""), imports.split_whitespace().map(str::to_owned).collect())
        })
        .collect();
    assert!(table.len() > 20, "the table of modules was not found: {table:?}");
    table
}

/// `http` for `src/http/mod.rs`.
fn module(path: &str) -> &str {
    let path = path.strip_prefix("src/").unwrap_or(path);
    path.split(['/', '.']).next().unwrap_or(path)
}

/// Modules that a file names after `crate::`, with the line.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let mut code = String::new();
    let mut starts = Vec::new();
    for (number, line) in source.code() {
        starts.push((code.len(), number));
        code.push_str(line);
        code.push('\n');
    }
    let line_of =
        |at: usize| starts.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, line)| *line);
    let paths = code.match_indices("crate::").filter(|(at, _)| !code[..*at].ends_with(char::is_alphanumeric));
    paths
        .flat_map(|(at, prefix)| heads(&code[at + prefix.len()..]).into_iter().map(move |head| (at, head)))
        // A name in lower case is a module.
        .filter(|(_, head)| head.starts_with(|first: char| first.is_ascii_lowercase()))
        .map(|(at, head)| (line_of(at), head))
        .collect()
}

/// First segments of a path, or of every path in a braced group.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let mut depth = 1;
    let end = group.find(|one: char| {
        depth += i32::from(one == '{') - i32::from(one == '}');
        depth == 0
    });
    let mut depth = 0;
    let parts = group[..end.unwrap_or(group.len())].split(|one: char| {
        depth += i32::from(one == '{') - i32::from(one == '}');
        one == ',' && depth == 0
    });
    parts.map(word).filter(|head| !head.is_empty()).collect()
}

#[test]
fn a_module_imports_only_what_the_table_allows() {
    let table = table();
    let mut broken = Vec::new();
    for source in rust(&["src"]) {
        let own = module(&source.path);
        if ROOT.contains(&own) {
            continue;
        }
        let Some(allowed) = table.get(own) else {
            broken.push(format!("{} is in a module without a row", source.path));
            continue;
        };
        for (line, named) in imports(&source) {
            if named != own && !allowed.contains(&named) {
                broken.push(format!("{}:{line} imports {named}", source.path));
            }
        }
    }
    hold("an import that docs/development/architecture.md does not have", broken);
}

#[test]
fn every_allowed_import_is_used_and_every_module_has_a_row() {
    let sources = rust(&["src"]);
    let mut used: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in &sources {
        let own = module(&source.path);
        used.entry(own).or_default().extend(imports(source).into_iter().map(|(_, named)| named));
    }
    let mut broken = Vec::new();
    for (name, allowed) in table() {
        match used.get(name.as_str()) {
            None => broken.push(format!("`{name}` has a row and no sources")),
            Some(used) => {
                broken
                    .extend(allowed.difference(used).map(|one| format!("`{name}` does not import `{one}`")));
            }
        }
    }
    hold("a row of docs/development/architecture.md that is not true", broken);
}

#[test]
fn libraries_stay_in_their_modules() {
    let sources = rust(&["src"]);
    let outside = |text: &str, homes: &[&str]| -> Vec<String> {
        let others = sources.iter().filter(|source| !homes.iter().any(|home| source.path.starts_with(home)));
        others.flat_map(|source| source.places(text)).collect()
    };
    hold("sqlx outside store/", outside("sqlx::", &["src/store/", "src/app/"]));
    hold("axum outside http/ and web/", outside("axum::", &["src/http/", "src/web/", "src/app/"]));
    // A client reads the status of a server that it called: that is not a status of this API. Nor is what the
    // egress proxy answers to the programs of a sandbox.
    let homes = ["src/http/", "src/web/", "src/model/", "src/webhook/", "src/cli/", "src/egress/"];
    hold("a status code outside http/ and web/", outside("StatusCode", &homes));
}

#[test]
fn pure_modules_do_no_io_and_read_no_clock() {
    let inside = |home: &str, words: &[&str]| -> Vec<String> {
        let own = rust(&[home]);
        own.iter().flat_map(|source| words.iter().flat_map(|word| source.places(word))).collect()
    };
    let waiting = ["async ", ".await", "tokio::", "std::fs", "std::net", "std::process"];
    hold("I/O or async in domain/", inside("src/domain", &waiting));
    for home in ["src/domain", "src/harness", "src/wire"] {
        hold("a clock of its own", inside(home, &["Instant::now"]));
    }
}

#[test]
fn the_log_is_appended_to_in_the_store_and_never_changed() {
    let outside = |text: &str, homes: &[&str]| -> Vec<String> {
        let sources = rust(&["src"]);
        let others = sources.iter().filter(|source| !homes.iter().any(|home| source.path.starts_with(home)));
        // `event_content` is another table.
        let others = others.map(|source| (source.places(text), source.places(&format!("{text}_"))));
        others.flat_map(|(all, apart)| all.into_iter().filter(move |place| !apart.contains(place))).collect()
    };
    let log = ["src/store/sessions/event.rs", "src/store/sessions/record/"];
    hold("an append outside the log's own statements", outside("insert into event", &log));
    for change in ["update event", "delete from event", "truncate event", "merge into event"] {
        hold("an event that is changed", outside(change, &[]));
    }
    // The outbox creates a delivery's id in the statement that appends its event.
    let outbox = [log[0], log[1], "src/store/deliveries/notice.rs"];
    hold("ids created by the database", outside("gen_random_uuid", &outbox));
}

#[test]
fn the_reader_of_imports_sees_into_groups() {
    assert_eq!(heads("store::{a, b};"), ["store"]);
    assert_eq!(heads("{base::{x, y}, domain::Z,\n  queue,}; rest"), ["base", "domain", "queue"]);
}
