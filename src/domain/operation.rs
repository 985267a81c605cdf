//! Operations of callers on a session's sandbox: commands and files.
//!
//! Stored by `store::operation`, executed by the module `operation`, awaited by `http`. The log
//! records a command when it starts and when it ends, and a written file when it is written.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Session,
    context::Context,
    ids::{CheckpointId, OperationId},
};

/// Request of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Request {
    /// Run a command.
    Exec {
        argv: Vec<String>,
        /// The command as the caller wrote it, for the log.
        command: String,
        /// Absolute path; `/workspace` when empty.
        working_dir: String,
        env: Vec<(String, String)>,
        timeout_seconds: u64,
    },
    /// Copy bytes of a file, starting at `offset`, into a blob.
    Read { path: String, offset: u64, bytes_max: u64 },
    /// Replace a file with the content of a blob.
    Write { path: String, blob: String },
    /// List a directory.
    List { path: String },
    /// Copy a directory into a blob, as a tar archive.
    ReadTree { path: String },
    /// Unpack a tar archive from a blob into a directory.
    WriteTree { path: String, blob: String },
    /// Start the sandbox.
    Start,
    /// Hibernate the sandbox: checkpoint the files and remove it.
    Stop,
    /// Create a checkpoint that is not replaced by automatic ones.
    Checkpoint,
    /// Continue with the files of a checkpoint.
    Restore { checkpoint: CheckpointId },
    /// Kill a command and its descendants, or send them a signal.
    Kill {
        exec: OperationId,
        #[serde(default)]
        signal: Option<Signal>,
    },
}

/// A signal that can be sent to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Usr1,
    Usr2,
    Term,
    /// Cannot be caught or ignored.
    Kill,
}

/// The output streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl Request {
    /// Returns whether nothing else may run in the sandbox at the same time.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Self::Stop | Self::Restore { .. })
    }

    /// Returns the request with the session's context applied.
    pub fn within(self, context: &Context) -> Self {
        match self {
            Self::Exec { argv, command, working_dir, env, timeout_seconds } => Self::Exec {
                argv,
                command,
                working_dir: match (working_dir.as_str(), &context.working_dir) {
                    ("", Some(usual)) => usual.clone(),
                    _ => working_dir,
                },
                env: context.env_under(&env),
                timeout_seconds,
            },
            other => other,
        }
    }
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// The command ended.
    Exec {
        exit_code: i32,
        /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
        cause: String,
        /// The stored beginnings of the outputs.
        stdout: String,
        stderr: String,
        /// Bytes that were written, stored or not.
        stdout_bytes: u64,
        stderr_bytes: u64,
        duration_ms: u64,
    },
    /// The bytes are in the blob; the file or archive has `size` bytes in total.
    Read { blob: String, bytes: u64, size: u64 },
    /// The file was written.
    Written { bytes: u64 },
    /// The files are in this checkpoint, or were restored from it.
    Kept { checkpoint: CheckpointId },
    /// The operation is done.
    Done,
    /// Entries sorted by name; truncated at a max number.
    Listed { entries: Vec<Entry>, is_cut: bool },
    /// The operation failed.
    Failed { code: Failure, message: String },
}

impl Answer {
    /// Returns the end of a command that is killed, or gets a signal, before it runs: that of a running command which
    /// does not handle the signal. `None` for USR1 and USR2, whose meaning is that of the program.
    pub fn killed_in_queue(signal: Option<Signal>) -> Option<Self> {
        // 128 + the number of the signal on Linux. A kill begins with TERM.
        let exit_code = match signal.unwrap_or(Signal::Term) {
            Signal::Hup => 129,
            Signal::Int => 130,
            Signal::Quit => 131,
            Signal::Kill => 137,
            Signal::Term => 143,
            Signal::Usr1 | Signal::Usr2 => return None,
        };
        Some(Self::Exec {
            exit_code,
            cause: "killed".to_owned(),
            stdout: String::new(),
            stderr: String::new(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            duration_ms: 0,
        })
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    /// `file`, `directory`, `link` or `other`.
    pub kind: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

/// Reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// No such file.
    NotFound,
    /// The sandbox refused it: a bad path, a directory, no permission.
    Refused,
    /// The data exceeds the limit of one request.
    TooLarge,
    /// Commands are running in the sandbox.
    InUse,
    /// A limit of the session or a spending cap is used up.
    BudgetExceeded,
    /// The organization's balance is used up.
    PaymentRequired,
    /// No sandbox is available.
    SandboxUnavailable,
    /// The environment's lifecycle hook failed.
    LifecycleHookFailed,
    /// The available credential may not read a repository of the session.
    MissingRepoAccess,
    /// A repository of the session cannot be cloned as configured.
    SourceFailed,
    /// A skill of the session does not exist, or does not fit into the sandbox.
    SkillFailed,
    /// The environment whose secrets the session pinned was deleted.
    EnvironmentDeleted,
    /// The sandbox was lost during the operation, which may have taken effect.
    OutcomeUnknown,
    /// The session was archived first.
    Canceled,
}

/// Returns the session limit that is used up: name, used, allowed.
pub(crate) fn used_up(session: &Session) -> Option<(&'static str, u64, u64)> {
    measured(session).find(|(_, used, allowed)| used >= allowed)
}

/// Returns the session limits of which at least 80 % are used.
pub(crate) fn close(session: &Session) -> impl Iterator<Item = (&'static str, u64, u64)> {
    // As u128: a limit may be as large as `u64::MAX`.
    measured(session)
        .filter(|(_, used, allowed)| *allowed > 0 && u128::from(*used) * 5 >= u128::from(*allowed) * 4)
}

/// Returns name, usage and limit of each session limit that is set.
fn measured(session: &Session) -> impl Iterator<Item = (&'static str, u64, u64)> {
    let (limits, usage) = (session.created.limits, session.usage);
    let all = [
        ("tokens", usage.tokens(), limits.tokens),
        ("cost_micros", usage.cost.known_micros(), limits.cost_micros),
        ("duration_seconds", session.duration_seconds(), limits.duration_seconds),
        ("tool_calls", usage.tool_calls, limits.tool_calls),
    ];
    all.into_iter().filter_map(|(name, used, allowed)| Some((name, used, allowed?)))
}

#[cfg(test)]
mod tests {
    use super::{Answer, Signal};

    #[test]
    fn a_queued_command_ends_by_the_signals_that_end_commands() {
        let code = |signal| match Answer::killed_in_queue(signal) {
            Some(Answer::Exec { exit_code, cause, .. }) if cause == "killed" => Some(exit_code),
            _ => None,
        };
        for (signal, wanted) in [
            (None, Some(128 + 15)),
            (Some(Signal::Hup), Some(128 + 1)),
            (Some(Signal::Int), Some(128 + 2)),
            (Some(Signal::Quit), Some(128 + 3)),
            (Some(Signal::Term), Some(128 + 15)),
            (Some(Signal::Kill), Some(128 + 9)),
            (Some(Signal::Usr1), None),
            (Some(Signal::Usr2), None),
        ] {
            assert_eq!(code(signal), wanted, "{signal:?}");
        }
    }
}
