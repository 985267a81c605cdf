//! Request and response bodies of execs and file operations.

use std::collections::BTreeMap;

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{DIRECT_EXEC_BYTES_MAX, DIRECT_EXEC_SECONDS, DIRECT_EXEC_SECONDS_MAX},
    domain::{
        OperationId,
        operation::{Answer, Entry, Failure, OutputStream, Request, Signal},
    },
};

/// Command to run in the session's sandbox.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecRequest {
    /// A command line for bash, or a program and its arguments.
    #[garde(custom(validate_command))]
    pub command: Command,
    /// Absolute path; the session's `working_dir` or `/workspace` when absent.
    #[garde(inner(length(bytes, min = 1, max = 4_096)), inner(custom(validate_absolute_path)))]
    pub working_dir: Option<String>,
    /// Environment variables in addition to those of the session.
    #[garde(custom(validate_env))]
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Maximum wall-clock time: 1 to 3600 seconds, default 600.
    #[garde(range(min = 1, max = DIRECT_EXEC_SECONDS_MAX))]
    #[schema(minimum = 1, maximum = 3600)]
    pub timeout_seconds: Option<u64>,
}

/// A command line for bash, or a program and its arguments.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Command {
    Line(String),
    Argv(Vec<String>),
}

/// Command started by a caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Exec)]
pub(crate) struct ExecView {
    pub id: OperationId,
    pub state: ExecState,
    pub command: String,
    /// Null until the command has ended; 128 + signal number if a signal terminated it.
    #[schema(required)]
    pub exit_code: Option<i32>,
    /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
    #[schema(required)]
    pub cause: Option<String>,
    /// The first 256 KiB of output so far; invalid UTF-8 is replaced.
    pub stdout: String,
    pub stderr: String,
    /// Total bytes written, including bytes that are not retained; while the command runs, the bytes read
    /// so far.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    #[schema(required)]
    pub duration_ms: Option<u64>,
    /// Reason why the outcome is unknown or the command did not run.
    #[schema(required)]
    pub error: Option<ExecError>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub completed_at: Option<OffsetDateTime>,
}

/// Options for terminating a command.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KillExec {
    /// Signal to send. By default TERM is sent, then KILL 1 second later. For any other signal than KILL,
    /// the request does not wait for the command to react.
    #[garde(skip)]
    pub signal: Option<Signal>,
}

/// One frame of a command's output stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum ExecFrame {
    /// Next output of the command; invalid UTF-8 is replaced.
    #[serde(rename = "exec.output")]
    Output { stream: OutputStream, text: String },
    /// The command has ended; this is the last frame. The fields are those of the command.
    #[serde(rename = "exec.ended")]
    Ended {
        state: ExecState,
        #[schema(required)]
        exit_code: Option<i32>,
        #[schema(required)]
        cause: Option<String>,
        stdout_bytes: u64,
        stderr_bytes: u64,
        #[schema(required)]
        duration_ms: Option<u64>,
        #[schema(required)]
        error: Option<ExecError>,
    },
}

impl ExecFrame {
    /// Builds the final frame of an ended command.
    pub(crate) fn ended(view: &ExecView) -> Self {
        Self::Ended {
            state: view.state,
            exit_code: view.exit_code,
            cause: view.cause.clone(),
            stdout_bytes: view.stdout_bytes,
            stderr_bytes: view.stderr_bytes,
            duration_ms: view.duration_ms,
            error: view.error.clone(),
        }
    }
}

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExecState {
    /// Waiting for a worker or for the sandbox.
    Queued,
    Running,
    /// The command has ended, with any exit code.
    Completed,
    /// The command could not be run, or its outcome is unknown; see `error`.
    Failed,
}

/// Reason why a command failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ExecError {
    /// `budget_exceeded`, `payment_required`, `sandbox_unavailable`, `lifecycle_hook_failed`, `missing_repo_access`,
    /// `source_failed`, `skill_failed`, `environment_deleted`, `outcome_unknown`, `refused` or `canceled`.
    pub code: String,
    pub message: String,
}

/// Content of a directory in a session's sandbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Directory {
    pub path: String,
    /// Sorted by name.
    pub entries: Vec<FileEntry>,
    /// True if the directory has more entries than are listed.
    pub truncated: bool,
}

/// An entry of a directory.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FileEntry {
    pub name: String,
    /// `file`, `directory`, `link` or `other`.
    #[serde(rename = "type")]
    pub kind: String,
    pub bytes: u64,
    /// Null if the timestamp is out of range.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub modified_at: Option<OffsetDateTime>,
}

/// A written file.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FileWritten {
    pub path: String,
    pub bytes: u64,
}

impl ExecRequest {
    /// Builds the operation request for the sandbox.
    pub(crate) fn request(self) -> Request {
        let (argv, command) = match self.command {
            Command::Line(line) => (vec!["bash".to_owned(), "-c".to_owned(), line.clone()], line),
            Command::Argv(argv) => {
                let command = argv.join(" ");
                (argv, command)
            }
        };
        Request::Exec {
            argv,
            command,
            working_dir: self.working_dir.unwrap_or_default(),
            env: self.env.into_iter().collect(),
            timeout_seconds: self.timeout_seconds.unwrap_or(DIRECT_EXEC_SECONDS),
        }
    }
}

impl From<Entry> for FileEntry {
    fn from(entry: Entry) -> Self {
        let modified_at = OffsetDateTime::from_unix_timestamp(entry.modified).ok();
        Self { name: entry.name, kind: entry.kind, bytes: entry.bytes, modified_at }
    }
}

impl ExecView {
    /// Builds the view of a requested command that has not ended.
    pub(crate) fn open(
        id: OperationId,
        command: String,
        created_at: OffsetDateTime,
        started_at: Option<OffsetDateTime>,
    ) -> Self {
        Self {
            id,
            state: if started_at.is_some() { ExecState::Running } else { ExecState::Queued },
            command,
            exit_code: None,
            cause: None,
            stdout: String::new(),
            stderr: String::new(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            duration_ms: None,
            error: None,
            created_at,
            started_at,
            completed_at: None,
        }
    }

    /// Adds the outcome of the command.
    pub(crate) fn answered(self, answer: Answer) -> Self {
        match answer {
            Answer::Exec { exit_code, cause, stdout, stderr, stdout_bytes, stderr_bytes, duration_ms } => {
                Self {
                    state: ExecState::Completed,
                    exit_code: Some(exit_code),
                    cause: Some(cause),
                    stdout,
                    stderr,
                    stdout_bytes,
                    stderr_bytes,
                    duration_ms: Some(duration_ms),
                    ..self
                }
            }
            Answer::Failed { code, message } => {
                let error = ExecError { code: word(code), message };
                Self { state: ExecState::Failed, error: Some(error), ..self }
            }
            Answer::Read { .. }
            | Answer::Written { .. }
            | Answer::Listed { .. }
            | Answer::Kept { .. }
            | Answer::Done => self,
        }
    }
}

/// The failure code as stored in the database.
pub(crate) fn word(code: Failure) -> String {
    serde_json::to_value(code).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn validate_command(command: &Command, _context: &()) -> garde::Result {
    let all: Vec<&str> = match command {
        Command::Line(line) => vec![line],
        Command::Argv(argv) => argv.iter().map(String::as_str).collect(),
    };
    let bytes: usize = all.iter().map(|word| word.len()).sum();
    if all.first().is_none_or(|program| program.is_empty()) {
        return Err(garde::Error::new("is empty"));
    }
    if bytes > DIRECT_EXEC_BYTES_MAX || all.len() > 1_024 {
        return Err(garde::Error::new(format!("takes at most 1024 words and {DIRECT_EXEC_BYTES_MAX} bytes")));
    }
    match all.iter().any(|word| word.contains('\0')) {
        true => Err(garde::Error::new("contains U+0000")),
        false => Ok(()),
    }
}

pub(super) fn validate_absolute_path(path: &str, _context: &()) -> garde::Result {
    match path.starts_with('/') && !path.contains('\0') {
        true => Ok(()),
        false => Err(garde::Error::new("must be an absolute path")),
    }
}

pub(super) fn validate_env(env: &BTreeMap<String, String>, _context: &()) -> garde::Result {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.as_bytes()[0].is_ascii_digit()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if env.len() > 128 || bytes > DIRECT_EXEC_BYTES_MAX {
        return Err(garde::Error::new(format!(
            "must have at most 128 variables and {DIRECT_EXEC_BYTES_MAX} bytes"
        )));
    }
    match env.iter().all(|(name, value)| is_name(name) && !value.contains('\0')) {
        true => Ok(()),
        false => Err(garde::Error::new("must have names of letters, digits and underscores")),
    }
}
