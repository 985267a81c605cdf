//! Command lines that are allowed, compared with what a shell runs.

use std::process::Command;

use serde_json::json;
use sojourn::{
    domain::{
        permission::{Permissions, Policy},
        tool::{Replay, ToolCall, ToolSpec},
    },
    permission::Evaluator,
};

/// Parts of lines. `evil` is a program that leaves a file.
const PARTS: [&str; 72] = [
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
];
const LINES: u64 = 100_000;

#[test]
fn no_line_that_is_allowed_runs_another_program() {
    let directory = tempfile::tempdir().expect("a directory");
    let (programs, ran) = (directory.path().join("bin"), directory.path().join("ran"));
    std::fs::create_dir(&programs).expect("a directory");
    let evil = programs.join("evil");
    std::fs::write(&evil, format!("#!/bin/sh\n: > {}\n", ran.display())).expect("a program");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&evil, mode).expect("a program");
    let rules = json!([
        { "tool": "bash", "policy": "ask" }, { "tool": "bash", "prefix": "echo", "policy": "allow" },
        { "tool": "bash", "prefix": "true", "policy": "allow" }, { "tool": "bash", "prefix": "[", "policy": "allow" },
    ]);
    let agent = serde_json::from_value(rules).expect("rules");
    let permissions = Permissions { agent, ..Permissions::default() };
    let spec = ToolSpec {
        name: "bash".to_owned(),
        description: String::new(),
        input_schema: json!({}),
        replay: Replay::Unsafe,
    };
    // A linear congruential generator (Knuth, MMIX), so that the lines are the same in each run.
    let mut state = 1_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut allowed = 0;
    for _ in 0..LINES {
        let line: String = (0..2 + below(9)).map(|_| PARTS[below(PARTS.len() as u64) as usize]).collect();
        let input = json!({ "command": line });
        let call = ToolCall { call_id: "c".to_owned(), tool: "bash".to_owned(), input };
        let evaluator = Evaluator { permissions: &permissions, grants: &[], cwd: "/" };
        if !line.contains("evil") || evaluator.evaluate(&call, &spec).policy != Policy::Allow {
            continue;
        }
        allowed += 1;
        let mut shell = Command::new("/bin/bash");
        shell.args(["-c", &line]).env_clear().env("PATH", &programs).current_dir(directory.path());
        shell.output().expect("a shell");
        assert!(!ran.exists(), "{line:?} is allowed and runs another program");
    }
    assert!(allowed > 100, "{allowed} lines were allowed");
}
