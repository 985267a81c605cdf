//! A simple command, and the commands that do more than their words say.

/// Commands that run others which their arguments or input name.
#[rustfmt::skip]
const WRAPPERS: [&str; 51] = [
    ".", "alias", "builtin", "busybox", "choom", "chroot", "chrt", "command", "compgen", "complete", "declare", "doas",
    "enable", "env", "eval", "exec", "flock", "hash", "ionice", "let", "linux32", "linux64", "mapfile", "nice", "nohup",
    "nsenter", "parallel", "pkexec", "prlimit", "readarray", "runuser", "script", "setarch", "setpriv", "setsid",
    "source", "ssh", "stdbuf", "strace", "su", "sudo", "systemd-run", "taskset", "time", "timeout", "trap", "typeset",
    "unshare", "watch", "xargs", "local",
];
const SHELLS: [&str; 11] =
    ["ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash", "sh", "tcsh", "zsh"];
/// Operators of `test` and `[` that evaluate a subscript, in which a substitution runs.
const EVALUATING_TESTS: [&str; 2] = ["-v", "-R"];
/// Those of `[[`, with those whose operands are arithmetic.
const EVALUATING: [&str; 8] = ["-v", "-R", "-eq", "-ne", "-lt", "-le", "-gt", "-ge"];
/// Options of `find` that run commands or change files.
const FIND_ACTIONS: [&str; 9] =
    ["-delete", "-exec", "-execdir", "-fls", "-fprint", "-fprint0", "-fprintf", "-ok", "-okdir"];

/// A command without operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::permission) struct SimpleCommand {
    /// Its name and arguments; `None` for a word that is known only when the command runs.
    pub words: Vec<Option<String>>,
    /// Whether it has a redirection, or sets a variable.
    pub has_more: bool,
}

impl SimpleCommand {
    /// Returns whether it may run another command than its words say.
    pub(in crate::permission) fn is_wrapper(&self) -> bool {
        let Some(Some(name)) = self.words.first() else { return !self.words.is_empty() };
        let arguments = &self.words[1..];
        let has = |options: &[&str]| arguments.iter().flatten().any(|word| options.contains(&word.as_str()));
        match name.rsplit('/').next().unwrap_or_default() {
            "find" => has(&FIND_ACTIONS),
            // The subscript of a variable is evaluated.
            "read" | "unset" | "export" | "readonly" | "getopts" | "wait" => {
                arguments.iter().any(|word| word.as_deref().is_none_or(|word| word.contains('[')))
            }
            "test" | "[" => has(&EVALUATING_TESTS),
            "[[" => has(&EVALUATING),
            "printf" => arguments
                .first()
                .is_some_and(|word| word.as_deref().is_some_and(|word| word.starts_with("-v"))),
            shell if SHELLS.contains(&shell) => match arguments.first() {
                Some(Some(first)) => {
                    first.starts_with(['-', '+'])
                        || ["/dev/", "/proc/"].iter().any(|one| first.starts_with(one))
                }
                Some(None) | None => true,
            },
            loader if loader.starts_with("ld-linux") || loader.starts_with("ld-musl") => true,
            name => WRAPPERS.contains(&name),
        }
    }

    /// Returns whether a rule may allow it by its first words: it does what these say, and sets nothing.
    pub(in crate::permission) fn is_plain(&self) -> bool {
        let has_unknown = self.words.iter().any(Option::is_none);
        // Any of their words may be an option that makes them a wrapper.
        let is_open = |name: &str| ["find", "test", "[", "[[", "printf"].contains(&name);
        let name = self.words.first().and_then(Option::as_deref).and_then(|name| name.rsplit('/').next());
        let is_hidden = has_unknown && name.is_some_and(is_open);
        !(self.has_more || self.is_wrapper() || is_hidden)
    }
}
