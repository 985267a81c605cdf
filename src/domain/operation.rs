//! What a caller asks of a session's sandbox without its agent: commands and files.
//!
//! Stored by `store::operation`, served by `worker::operate`, waited for by `http`. A
//! command is in the log when it starts and when it is over, a written file when it is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Session,
    context::Context,
    ids::{CheckpointId, OperationId},
};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Request {
    /// Run a command.
    Exec {
        argv: Vec<String>,
        /// As the caller wrote it, for the log.
        command: String,
        /// Absolute; `/workspace` when empty.
        working_dir: String,
        env: Vec<(String, String)>,
        timeout_seconds: u64,
    },
    /// Copy bytes of a file, from `offset` on, into a blob.
    Read { path: String, offset: u64, bytes_max: u64 },
    /// Replace a file by a blob.
    Write { path: String, blob: String },
    /// Name what a directory holds.
    List { path: String },
    /// Copy what is below a directory into a blob, as a tar archive.
    ReadTree { path: String },
    /// Unpack a blob below a directory.
    WriteTree { path: String, blob: String },
    /// Have the sandbox there.
    Start,
    /// Save the files and put the sandbox away.
    Stop,
    /// Save the files, and keep them so.
    Checkpoint,
    /// Go on with the files of a checkpoint.
    Restore { checkpoint: CheckpointId },
    /// End a command with all that it started, or send them a signal.
    Kill {
        exec: OperationId,
        #[serde(default)]
        signal: Option<Signal>,
    },
}

/// A signal that a command may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Usr1,
    Usr2,
    Term,
    /// Nothing withstands it.
    Kill,
}

/// The two outputs of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl Request {
    /// Whether nothing else may be under way in the sandbox meanwhile.
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::Stop | Self::Restore { .. })
    }

    /// The same, with what the session's commands start with.
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

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// The command is over.
    Exec {
        exit_code: i32,
        /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
        cause: String,
        /// What was kept of the outputs: their beginnings.
        stdout: String,
        stderr: String,
        /// Bytes that were written, kept or not.
        stdout_bytes: u64,
        stderr_bytes: u64,
        duration_ms: u64,
    },
    /// The bytes are in the blob; the file, or the archive, has `size` of them.
    Read { blob: String, bytes: u64, size: u64 },
    /// The file is there.
    Written { bytes: u64 },
    /// The files are in this checkpoint, or go on from it.
    Kept { checkpoint: CheckpointId },
    /// It is so.
    Done,
    /// In the order of their names; cut after so many.
    Listed { entries: Vec<Entry>, is_cut: bool },
    /// It could not be done.
    Failed { code: Failure, message: String },
}

/// Something in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    /// `file`, `directory`, `link` or `other`.
    pub kind: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

/// Why an operation could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// No such file.
    NotFound,
    /// The sandbox refuses: a bad path, a directory, no permission.
    Refused,
    /// There is more of it than one request gets.
    TooLarge,
    /// Commands run in the sandbox.
    InUse,
    /// A limit of the session or a spending cap is used up.
    BudgetExceeded,
    /// The organization has nothing left to spend.
    PaymentRequired,
    /// No sandbox can be had.
    SandboxUnavailable,
    /// The environment's trigger failed.
    LifecycleHookFailed,
    /// A repository of the session may not be read with what there is for it.
    MissingRepoAccess,
    /// A repository of the session cannot be cloned as it is named.
    SourceFailed,
    /// The environment whose secrets the session pinned is gone.
    EnvironmentDeleted,
    /// The sandbox was lost while it was under way: it may have been done.
    OutcomeUnknown,
    /// The session was closed first.
    Canceled,
}

/// The limit of the whole session that is used up: its name, what was used and what is
/// allowed.
pub fn used_up(session: &Session) -> Option<(&'static str, u64, u64)> {
    measured(session).find(|(_, used, allowed)| used >= allowed)
}

/// The limits of the whole session of which 80 % are used.
pub fn close(session: &Session) -> impl Iterator<Item = (&'static str, u64, u64)> {
    // As u128: a limit may be as large as a counter can be.
    measured(session)
        .filter(|(_, used, allowed)| *allowed > 0 && u128::from(*used) * 5 >= u128::from(*allowed) * 4)
}

/// What counts against the limits of the whole session, where they are set.
fn measured(session: &Session) -> impl Iterator<Item = (&'static str, u64, u64)> {
    let (limits, usage) = (session.created.limits, session.usage);
    let all = [
        ("tokens", usage.tokens(), limits.tokens),
        ("cost_micros", usage.cost.known_micros(), limits.cost_micros),
        ("duration_seconds", session.active_seconds, limits.duration_seconds),
        ("tool_calls", usage.tool_calls, limits.tool_calls),
    ];
    all.into_iter().filter_map(|(name, used, allowed)| Some((name, used, allowed?)))
}
