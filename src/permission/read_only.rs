//! Calls that the policy `auto` lets run unasked: they only read.

use super::target::Target;
use crate::domain::tool::Replay;

/// Commands that only read files and print, whatever their arguments are but for [`WRITING`].
const COMMANDS: [&str; 39] = [
    "[",
    "basename",
    "cat",
    "cd",
    "cmp",
    "column",
    "comm",
    "cut",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "false",
    "fgrep",
    "find",
    "grep",
    "head",
    "id",
    "jq",
    "ls",
    "md5sum",
    "nl",
    "od",
    "paste",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rg",
    "sha256sum",
    "stat",
    "strings",
    "tail",
    "test",
    "tr",
    "true",
    "wc",
    "which",
];
/// Commands of `git` that only read.
const OF_GIT: [&str; 10] =
    ["blame", "cat-file", "describe", "diff", "log", "ls-files", "merge-base", "rev-parse", "show", "status"];
/// Begins of options with which one of these commands writes a file or runs a program.
const WRITING: [&str; 5] = ["--output", "--pre", "--hostname-bin", "--ext-diff", "--textconv"];

/// Returns whether a target is only read.
pub(super) fn is_read_only(target: &Target, replay: Replay) -> bool {
    let Target::Command(command) = target else {
        return *target != Target::AnyCommand && replay == Replay::ReadOnly;
    };
    // With unknown words it may be any option.
    let Some(words) = command.words.iter().map(Option::as_deref).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let Some((name, arguments)) = words.split_first() else { return false };
    if !command.is_plain() {
        return false;
    }
    let is_known = match *name {
        "git" => arguments.first().is_some_and(|of| OF_GIT.contains(of)),
        name => COMMANDS.contains(&name),
    };
    is_known && !arguments.iter().any(|word| WRITING.iter().any(|option| word.starts_with(option)))
}
