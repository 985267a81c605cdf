//! Words that belong to one place: the clock, chance, tasks, the table of events.

use super::{
    hold, outside,
    source::{Source, sources},
};

/// Where tasks and threads are begun, and who joins them.
const SPAWNS: [(&str, &str); 18] = [
    ("src/app/mod.rs", "a JoinSet that the shutdown drains"),
    ("src/telemetry.rs", "a thread within a scope that joins it"),
    ("src/cli/webhook/listen.rs", "a JoinSet that is shut down before the command ends"),
    ("src/cli/serve.rs", "two handles that are awaited before the process ends"),
    ("src/worker/mod.rs", "JoinSets that are drained when the worker stops"),
    ("src/operation/archive.rs", "work on an archive that ends with its channel"),
    ("src/webhook/dispatcher.rs", "a JoinSet that is drained when the dispatcher stops"),
    ("src/http/serve.rs", "a JoinSet that is drained when the listener stops"),
    ("src/stream/mod.rs", "a tracker that the shutdown waits for"),
    ("src/journal/committer.rs", "a tracker that the shutdown waits for"),
    ("src/egress/proxy.rs", "a tracker that ends with the proxy"),
    ("src/net/resolve.rs", "a lookup that is awaited at once, behind a semaphore"),
    ("src/sandbox/local/mod.rs", "work on files that is awaited at once"),
    ("src/sandbox/local/docker/mod.rs", "a thread that asks the daemon and is joined at once"),
    ("src/sandbox/checkpoint.rs", "work on an archive that ends with its channel, or is awaited at once"),
    ("init/src/server.rs", "connections of a sandbox, which end with it"),
    ("init/src/install.rs", "what passes output on, which ends with the container"),
    ("init/src/runner.rs", "the reaper of one command, which ends with its process"),
];

fn all(sources: &[Source], words: &[&str], homes: &[&str]) -> Vec<String> {
    let strangers = outside(sources, homes);
    strangers.flat_map(|source| words.iter().flat_map(|word| source.places(word))).collect()
}

#[test]
fn the_wall_clock_is_read_in_base_alone() {
    let words = ["SystemTime::now", "UNIX_EPOCH", "now_utc", "now_local", "UtcDateTime::now"];
    hold("the wall clock outside base/", all(&sources(&["src", "init/src"]), &words, &["src/base/"]));
}

#[test]
fn durations_are_measured_outside_the_domain_and_the_harness() {
    let sources: Vec<_> = sources(&["src/domain", "src/harness", "src/wire"]);
    hold("a clock of its own in a pure room", all(&sources, &["Instant"], &[]));
}

#[test]
fn chance_and_ids_come_from_base_alone() {
    let words = ["getrandom", "rand", "fastrand", "RandomState", "Uuid::new_v4", "Uuid::now_v7", "OsRng"];
    hold("random bits or new ids outside base/", all(&sources(&["src", "init/src"]), &words, &["src/base/"]));
    // The outbox makes a delivery's id where it makes its row: in the event's own statement.
    let homes = ["src/store/sessions/event.rs", "src/store/sessions/record/mod.rs", "src/store/deliveries/notice.rs"];
    let sources = sources(&["src"]);
    let strangers = outside(&sources, &homes);
    let in_sql = strangers.flat_map(|source| source.places_in_literals("gen_random_uuid")).collect();
    hold("ids made by the database", in_sql);
}

#[test]
fn tasks_begin_only_where_they_are_joined() {
    let homes: Vec<_> = SPAWNS.iter().map(|(path, _)| *path).collect();
    let words = ["tokio::spawn", "spawn_blocking", "spawn_local", "thread::spawn", "thread::Builder"];
    let sources = sources(&["src", "init/src"]);
    let mut broken = all(&sources, &words, &homes);
    // `.spawn()` without an argument starts a program, not a task.
    for source in outside(&sources, &homes) {
        let calls = source.code.match_indices(".spawn(").map(|(at, _)| at);
        let tasks = calls.filter(|at| !source.is_test(*at) && !source.code[at + 7..].starts_with(')'));
        broken.extend(tasks.map(|at| source.place(at)));
    }
    hold("a task that nobody is known to join", broken);
}

#[test]
fn the_log_is_appended_to_in_two_places_and_never_changed() {
    let sources = sources(&["src"]);
    let writers = ["src/store/sessions/event.rs", "src/store/sessions/record/mod.rs", "src/store/sessions/record/together.rs"];
    let strangers = outside(&sources, &writers);
    let appended = strangers.flat_map(|source| source.places_in_literals("insert into event")).collect();
    hold("an append outside the two egress sockets", appended);
    let changes = ["update event", "delete from event", "truncate event", "merge into event"];
    let changed = sources.iter().flat_map(|source| {
        changes.iter().flat_map(|change| source.places_in_literals(change)).collect::<Vec<_>>()
    });
    hold("an event that is changed", changed.collect());
}

#[test]
fn nothing_is_left_for_later() {
    let sources = sources(&["src", "init/src", "build.rs"]);
    let words = ["unwrap()", "todo!", "unimplemented!", "dbg!"];
    hold("a stub or an unwrap outside tests", all(&sources, &words, &[]));
    let marks = ["TODO", "FIXME", "XXX", "HACK"];
    let marked = sources.iter().flat_map(|source| {
        let lines = (1..).zip(source.text.lines());
        let found = lines.filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
        found.map(|(line, _)| format!("{}:{line}", source.path)).collect::<Vec<_>>()
    });
    hold("a mark for later", marked.collect());
}

#[test]
fn no_test_is_skipped() {
    let sources = sources(&["src", "init/src", "tests"]);
    let skipped = sources.iter().flat_map(|source| {
        let code = source.code.match_indices("#[ignore").map(|(at, _)| source.place(at));
        code.collect::<Vec<_>>()
    });
    hold("a test that never runs", skipped.collect());
}
