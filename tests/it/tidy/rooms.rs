//! Which room may import which: the table of the README, as data.
//!
//! A new arrow between rooms is a design change: it begins there, then here.

use std::collections::BTreeSet;

use super::{
    hold, outside,
    source::{Source, sources},
    within,
};

/// Each room with the rooms that it may name.
const MAY_IMPORT: [(&str, &str); 20] = [
    ("base", ""),
    ("domain", "base"),
    ("store", "base domain"),
    ("blob", "base"),
    ("net", "base"),
    ("model", "base domain net"),
    ("sandbox", "base domain blob"),
    ("egress", "base domain net"),
    ("tool", "base domain sandbox net"),
    ("queue", "base domain store"),
    // Bodies that are too large for a row become blobs before it is written.
    ("journal", "base domain store queue blob"),
    ("harness", "base domain model tool"),
    ("worker", "queue journal harness webhook tool model sandbox egress blob store domain base net trigger"),
    // A session is opened the same way whoever asks: at the egress socket, when its time has come, or
    // an agent by a tool.
    ("trigger", "base domain model store journal"),
    ("wire", "base domain"),
    ("stream", "base domain store wire"),
    ("webhook", "base domain store wire net"),
    // What a request names is checked at the egress socket: addresses (net), models, tools.
    // A destination's secret is made where it is shown (webhook).
    ("http", "base domain wire store journal stream blob net model tool trigger webhook"),
    ("web", "base wire"),
    // `serve`, `admin` and `openapi` are the program itself, not a client of it: they
    // name the root, the settings and what the first session plays on.
    // `webhook listen` verifies deliveries as they are signed.
    ("cli", "base domain wire app config http model net shutdown store telemetry webhook"),
];
/// Rooms of the table that are not built yet.
const TO_COME: [&str; 0] = [];
/// The composition root imports everything.
const ROOT: [&str; 6] = ["app", "config", "lib", "main", "shutdown", "telemetry"];

/// `http` for `src/http/mod.rs` and for `src/http/mod.rs`.
fn room(path: &str) -> &str {
    let path = path.strip_prefix("src/").unwrap_or(path);
    path.split(['/', '.']).next().unwrap_or(path)
}

#[test]
fn a_room_imports_only_what_the_table_allows() {
    let mut broken = Vec::new();
    for source in sources(&["src"]) {
        let own = room(&source.path);
        if ROOT.contains(&own) {
            continue;
        }
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == own) else {
            broken.push(format!("{} is in a room that the table does not name", source.path));
            continue;
        };
        for (at, named) in imports(&source) {
            if named != own && !allowed.split(' ').any(|room| room == named) {
                broken.push(format!("{} imports {named}", source.place(at)));
            }
        }
    }
    hold("an arrow between rooms that the table does not have", broken);
}

#[test]
fn the_table_and_the_rooms_name_each_other() {
    let sources = sources(&["src"]);
    let rooms: BTreeSet<&str> = sources.iter().map(|source| room(&source.path)).collect();
    let table: BTreeSet<&str> = MAY_IMPORT.iter().map(|(name, _)| *name).chain(ROOT).collect();
    let unlisted: Vec<_> = rooms
        .difference(&table)
        .filter(|room| !TO_COME.contains(room))
        .map(|room| (*room).to_owned())
        .collect();
    hold("rooms without a row", unlisted);
    let unbuilt: Vec<_> = table.difference(&rooms).map(|room| (*room).to_owned()).collect();
    hold("rows without a room", unbuilt);
}

#[test]
fn sql_is_spoken_in_the_store_alone() {
    let sources = sources(&["src"]);
    let strangers = outside(&sources, &["src/store/", "src/app/mod.rs"]);
    hold("sqlx outside store/", strangers.flat_map(|source| source.places("sqlx")).collect());
}

#[test]
fn http_is_served_in_its_own_rooms_alone() {
    let sources = sources(&["src"]);
    let strangers = outside(&sources, &["src/http/", "src/web/", "src/app/mod.rs"]);
    hold("axum outside http/ and web/", strangers.flat_map(|source| source.places("axum")).collect());
    // A client reads the status of whoever it asked: that is no status of ours. Nor is
    // what a proxy says to the programs of a sandbox.
    let homes = ["src/http/", "src/web/", "src/model/", "src/webhook/", "src/cli/", "src/egress/"];
    let servers = outside(&sources, &homes);
    hold(
        "a status code outside http/ and web/",
        servers.flat_map(|source| source.places("StatusCode")).collect(),
    );
}

#[test]
fn the_domain_never_waits() {
    let sources = sources(&["src"]);
    let waiting = |source: &Source| {
        let words = ["async", "await", "tokio", "std::fs", "std::net", "std::process"];
        words.iter().flat_map(|word| source.places(word)).collect::<Vec<_>>()
    };
    hold("I/O or async in domain/", within(&sources, &["src/domain/"]).flat_map(waiting).collect());
}

/// The rooms that a file names, each with its place.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = &source.code;
    let mut found = Vec::new();
    for (at, path) in code.match_indices("crate::").filter(|(at, _)| !source.is_test(*at)) {
        let rest = &code[at + path.len()..];
        found.extend(heads(rest).into_iter().map(|head| (at, head)));
    }
    // So many steps up from a file of this depth lead out of its room.
    let depth = source.path.matches('/').count() - usize::from(source.path.ends_with("/mod.rs"));
    let out = "super::".repeat(depth.max(1));
    for (at, path) in code.match_indices(&out).filter(|(at, _)| !source.is_test(*at)) {
        let inner = code[..at].ends_with("super::") || code[at + path.len()..].starts_with("super::");
        if !inner {
            found.extend(heads(&code[at + path.len()..]).into_iter().map(|head| (at, head)));
        }
    }
    // A name in lower case is a room; items re-exported by the root would not be.
    found.retain(|(_, head)| head.starts_with(|character: char| character.is_ascii_lowercase()));
    found
}

/// First segments of a path or of every path in a braced group.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect()
    };
    if !rest.starts_with('{') {
        return vec![word(rest)];
    }
    let group = &rest[1..super::source::closing(rest, 0) - 1];
    let mut depth = 0;
    let parts = group.split(|character: char| {
        depth += i32::from(character == '{') - i32::from(character == '}');
        character == ',' && depth == 0
    });
    parts.map(word).filter(|head| !head.is_empty()).collect()
}

#[test]
fn the_reader_of_imports_sees_into_groups() {
    assert_eq!(heads("store::{a, b};"), ["store"]);
    assert_eq!(heads("{base::{x, y}, domain::Z,\n  queue,}; rest"), ["base", "domain", "queue"]);
}
