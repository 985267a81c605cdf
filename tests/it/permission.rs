//! Command lines that are allowed, compared with what a shell runs.

use std::process::Command;

use serde_json::{Value, json};
use sojourn::{
    domain::{
        permission::{Permissions, Policy},
        tool::{Replay, ToolCall, ToolSpec},
    },
    permission::Evaluator,
};

/// Parts of lines. `evil` is a program that leaves a file.
const PARTS: [&str; 90] = [
    "evil",
    "evil ",
    " evil",
    "echo ",
    "true",
    "true ",
    "a",
    "'",
    "\"",
    "`",
    "$(",
    ")",
    "(",
    "${x",
    "}",
    "{ ",
    ";",
    "; ",
    "&",
    "|",
    "&&",
    "||",
    "\n",
    " ",
    "\\",
    "\\\n",
    "<<E\n",
    "E\n",
    "\nE\n",
    "<<'E'\n",
    "<<-E\n",
    "$",
    "$'",
    "#",
    " #",
    "<(",
    ">(",
    "> f",
    "2>&1",
    "&>f",
    "<<<",
    "if true; then ",
    "fi\n",
    "for x in ",
    "; do ",
    "done",
    "x=1 ",
    "x=",
    "$x",
    "$((",
    "))",
    "[ ",
    "]",
    "[[ ",
    "]]",
    "~",
    "*",
    "!",
    "case x in ",
    "esac",
    "f() ",
    "time ",
    "\t",
    ":-",
    "@P",
    "$\"",
    "\"$'",
    "\\\"",
    "\\'",
    "\\`",
    "<&-",
    "\u{a0}",
    "$\\\n",
    "a[$(evil)]",
    "'a[$(evil)]'",
    "for x in 'a[$(evil)]'; do ",
    "for x do ",
    "$((x))",
    "${x:0:x}",
    "${!x}",
    "${HOME:x}",
    "[ -v ",
    "printf -v ",
    "$x ",
    "set -- evil; ",
    "$@",
    "{evil,}",
    ">& -",
    "ev\\il",
    "\"evil\"",
];
const LINES: u64 = 200_000;

/// A directory with the program `evil`, and the evaluation of lines by some rules.
struct Ground {
    directory: tempfile::TempDir,
    permissions: Permissions,
    spec: ToolSpec,
}

impl Ground {
    fn new(rules: Value) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let programs = directory.path().join("bin");
        std::fs::create_dir(&programs).expect("a directory");
        let evil = programs.join("evil");
        let ran = directory.path().join("ran");
        std::fs::write(&evil, format!("#!/bin/sh\n: > {}\n", ran.display())).expect("a program");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&evil, mode).expect("a program");
        let agent = serde_json::from_value(rules).expect("rules");
        let spec = ToolSpec {
            name: "bash".to_owned(),
            description: String::new(),
            input_schema: json!({}),
            replay: Replay::Unsafe,
        };
        Self { directory, permissions: Permissions { agent, ..Permissions::default() }, spec }
    }

    fn allows(&self, line: &str) -> bool {
        let input = json!({ "command": line });
        let call = ToolCall { call_id: "c".to_owned(), tool: "bash".to_owned(), input };
        let evaluator = Evaluator { permissions: &self.permissions, grants: &[], cwd: "/" };
        evaluator.evaluate(&call, &self.spec).policy == Policy::Allow
    }

    /// Runs a line in a shell; returns whether `evil` ran.
    fn runs_evil(&self, line: &str) -> bool {
        let mut shell = Command::new("/bin/bash");
        shell.args(["-c", line]).env_clear().env("PATH", self.directory.path().join("bin"));
        shell.env("HOME", "a[$(evil)]").current_dir(self.directory.path());
        shell.output().expect("a shell");
        let ran = self.directory.path().join("ran");
        let has_run = ran.exists();
        if has_run {
            std::fs::remove_file(ran).expect("it is there");
        }
        has_run
    }
}

/// Lines of some parts, the same in each run, by a linear congruential generator (Knuth, MMIX).
fn lines() -> impl Iterator<Item = String> {
    let mut state = 1_u64;
    let mut below = move |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    (0..LINES).map(move |_| (0..2 + below(9)).map(|_| PARTS[below(PARTS.len() as u64) as usize]).collect())
}

/// No line with `evil` that is allowed runs it, and at least some are allowed.
fn check(rules: Value, least: usize) {
    let ground = Ground::new(rules);
    let mut allowed = 0;
    for line in lines().filter(|line| line.contains("evil") || line.contains("HOME")) {
        if ground.allows(&line) {
            allowed += 1;
            assert!(!ground.runs_evil(&line), "{line:?} is allowed and runs another program");
        }
    }
    assert!(allowed > least, "{allowed} lines were allowed");
}

#[test]
fn no_line_that_is_allowed_runs_another_program() {
    let allow = |prefix: &str| json!({ "tool": "bash", "prefix": prefix, "policy": "allow" });
    let mut rules = vec![json!({ "tool": "bash", "policy": "ask" })];
    rules.extend(["echo", "true", "[", "printf"].map(allow));
    check(Value::Array(rules), 100);
}

#[test]
fn no_line_runs_a_program_that_is_denied() {
    check(json!([{ "tool": "bash", "prefix": "evil", "policy": "deny" }]), 100);
}

#[test]
fn no_line_that_only_reads_runs_another_program() {
    check(json!([{ "tool": "bash", "policy": "auto" }]), 100);
}

/// Lines of attacks, each of which once was allowed.
#[test]
fn known_attacks_ask() {
    let rules = ["echo", "find", "[", "printf", "for"]
        .map(|prefix| json!({ "tool": "bash", "prefix": prefix, "policy": "allow" }));
    let allowing = Ground::new(json!(
        [json!({ "tool": "bash", "policy": "ask" })].into_iter().chain(rules).collect::<Vec<_>>()
    ));
    for line in [
        "echo \"$\\\n(evil)\"",
        "echo $\\\n'\\'' ; evil #'",
        "find . $\"-exec\" evil $\";\"",
        "find . $'-exec' evil ';'",
        "find . \"$@\"",
        "for x in 'a[$(evil)]'; do echo $((x)); done",
        "for x in 'a[$(evil)]'; do echo ${x:0:x}; done",
        "for PATH in .; do echo; done",
        "echo $((PATH=1)); echo",
        "[ -v 'a[$(evil)]' ]",
        "printf -v 'a[$(evil)]' x",
        "echo <<E $(echo a\nevil\nE\n)\nE\n",
    ] {
        assert!(!allowing.allows(line), "{line:?}");
    }
    let denying = Ground::new(json!([{ "tool": "bash", "prefix": "evil", "policy": "deny" }]));
    for line in [
        "$\"evil\" x",
        "$'evil'>/dev/null x",
        "set -- a; for x do evil; done",
        ">& -evil x",
        "taskset 1 evil",
        "[[ 'a[$(evil)]' -eq 0 ]]",
        "declare -i x='a[$(evil)]'",
        "echo evil | bash /dev/stdin",
        "read 'a[$(evil)]' <<< 1",
        "x='b[$(evil)]'; a[x]=1",
        "x='b[$(evil)]'; cat <<E\n$[x]\nE",
    ] {
        assert!(!denying.allows(line), "{line:?}");
    }
}
