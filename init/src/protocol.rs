//! Calls of a worker and their responses.
//!
//! One call and one response per connection. A call that changes something carries the epoch of the lease.
//! The sandbox stores the highest epoch that it has seen and refuses lower ones, so a worker that was
//! suspended and resumed changes nothing.

use serde::{Deserialize, Serialize};

/// Directory of the session's files; also the base of relative paths.
pub const WORKSPACE: &str = "/workspace";
/// Home of the command's user; a checkpoint contains it and the workspace.
pub const HOME: &str = "/home/agent";
/// Directories of the session's files: the name in archives and scans, the path in the sandbox.
pub const ROOTS: [(&str, &str); 2] = [("workspace", WORKSPACE), ("home", HOME)];
/// Directory of the session's skills: of the sandbox's uid 0, so that commands can only read it.
pub const SKILLS: &str = "/skills";
/// Name of the file in it that lists the skills; the last one of an archive.
pub const SKILLS_LIST: &str = ".list";
/// Directory shared by worker and sandbox; 0700 of the sandbox's uid 0.
pub const CONTROL_DIR: &str = "/.sojourn/control";
/// Name of init's socket in that directory.
pub const SOCKET_NAME: &str = "init.sock";
/// Directory of the commands' output; 0700 of the sandbox's uid 0.
pub const OUTPUT_DIR: &str = "/.sojourn/output";
/// Path of this program in the sandbox.
pub const PROGRAM: &str = "/.sojourn/sojourn-init";
/// Counter of the sandbox's out-of-memory kills, a file of its cgroup.
pub const OOM_COUNTER: &str = "/.sojourn/oom";
/// Directory of the egress socket and certificates; the sandbox cannot write to it.
pub const EGRESS_DIR: &str = "/.sojourn/egress";
/// Name of the egress proxy's socket in that directory.
pub const PROXY_SOCKET: &str = "proxy.sock";
/// CA bundle of the sandbox's programs: public roots and the sandbox's own authority.
pub const CERTIFICATES: &str = "/.sojourn/egress/certificates.pem";
/// Port of the proxy on the sandbox's loopback.
pub const PROXY_PORT: u16 = 3_128;
/// Prefix of each line that an installer prints; `INSTALL_ENDED` is the prefix of the line with its exit
/// code.
pub const INSTALL_OUTPUT: &str = "| ";
pub const INSTALL_ENDED: &str = "ended ";
/// Maximum size of an archive of the session's files, before compression.
pub const CHECKPOINT_BYTES_MAX: u64 = 16 << 30;
/// User and group of every command and file operation.
pub const COMMAND_UID: u32 = 1_000;

/// Bash command that runs a line with stderr redirected to stdout. Used as `bash -c JOIN_OUTPUTS LINE`;
/// preserves the order of writes. A runner that recognizes this form may redirect itself, which saves a
/// shell.
pub const JOIN_OUTPUTS: &str = "exec bash -c -- \"$0\" 2>&1";

/// Call of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Sent first by a new holder of the lease; raises the epoch.
    Hello { epoch: i64 },
    /// Returns the highest epoch and the number of running commands.
    Status {},
    /// Starts a command; idempotent by id.
    Start { epoch: i64, exec: ExecSpec },
    /// Returns the command's outcome, or `Running` after `timeout_ms`.
    Wait { exec_id: String, timeout_ms: u64 },
    /// Appends text to the input of a service, at `offset`. Bytes that the input has there already are skipped, so a
    /// repeated call changes nothing; other bytes at their place are refused.
    Input { epoch: i64, exec_id: String, offset: u64, text: String },
    /// Returns stored output or input of a command from `offset`.
    Output { exec_id: String, stream: Stream, offset: u64, bytes_max: usize },
    /// Ends a command and its descendants; the response is sent when none is left.
    Kill { epoch: i64, exec_id: String },
    /// Sends a signal to a command and its descendants; the response is sent once its runner was notified.
    Signal { epoch: i64, exec_id: String, signal: Signal },
    /// Reads part of a file as the command's user.
    ReadFile { path: String, offset: u64, bytes_max: usize },
    /// Replaces a file by the payload, as the command's user.
    WriteFile { epoch: i64, path: String },
    /// Stops all processes of commands until the next `Hello`, `Start`, `Kill`, `Signal` or `Input`, so that no file is
    /// newer than the next archive.
    Quiesce { epoch: i64 },
    /// Sends the session's files as a tar archive in parts, packed as the command's user while all other
    /// processes in the sandbox are stopped. Refused before the first part if the files are larger than
    /// [`CHECKPOINT_BYTES_MAX`].
    Pack { epoch: i64 },
    /// Unpacks the archive that follows in parts, as the command's user.
    Unpack { epoch: i64 },
    /// Sends a directory's content as a tar archive in parts, read as the command's user while other
    /// processes continue to run.
    ReadTree { path: String },
    /// Lists the session's files in parts of whole entries ([`crate::scan::ScanEntry`]), read as the command's user
    /// while other processes continue to run: depth first, names sorted. Changes no mode: files and
    /// directories that their owner closed are left out, like sockets, pipes and devices. Refused when there are more
    /// than `entries_max`.
    Scan { entries_max: u64 },
    /// Sends the content of some of the session's files in parts that form one stream ([`crate::scan`]), read as the
    /// command's user while other processes continue to run. The payload are the paths, each followed by a NUL.
    Fetch {},
    /// Unpacks the archive that follows in parts into a directory, over existing files, as the command's
    /// user.
    WriteTree { epoch: i64, path: String },
    /// Replaces the content of [`SKILLS`] by the archive that follows in parts, as the sandbox's root.
    WriteSkills { epoch: i64 },
}

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    pub id: String,
    pub argv: Vec<String>,
    pub cwd: String,
    pub env: Vec<(String, String)>,
    pub timeout_ms: u64,
    /// Time between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// Maximum stored bytes per stream.
    pub output_bytes_max: u64,
    /// Whether it takes input and stays: it does not count as running, so that its sandbox can rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_service: bool,
}

/// Stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// The input that it was sent so far.
    Stdin,
    Stdout,
    Stderr,
}

impl Stream {
    /// Name of the stream's file in the command's directory.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Stdin => "stdin",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A signal for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Usr1,
    Usr2,
    Term,
    Kill,
}

/// Response of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    Done {},
    /// The highest epoch, the number of commands that run or have left processes, and the number of those
    /// that have not ended; both without services.
    Status {
        epoch: i64,
        execs: u64,
        running: u64,
    },
    /// The command did not end within the requested time.
    Running {},
    Exit(Outcome),
    /// The payload is output.
    Output {},
    /// The payload is part of a file of this size.
    File {
        size: u64,
    },
    /// The payload is the next part of an archive, a scan or a fetch; `Done` follows the last one. The worker sends
    /// the same frames for an upload.
    Part {},
    Fault {
        kind: FaultKind,
        message: String,
    },
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    pub cause: Cause,
    /// Bytes written by the command, including those that were not stored.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration_ms: u64,
}

/// Reason why a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    Exited,
    Timeout,
    Oom,
    DiskFull,
    Killed,
}

/// Failure of a call, by what the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The epoch is lower than one that the sandbox has seen.
    Stale,
    /// No such command or file.
    NotFound,
    /// The same call can never succeed.
    Refused,
    /// Temporary lack of processes, memory or slots.
    Unavailable,
}

impl Answer {
    /// A failure with its reason.
    pub fn fault(kind: FaultKind, message: impl Into<String>) -> Self {
        Self::Fault { kind, message: message.into() }
    }
}

/// Whether this is a valid command id; it becomes the name of a directory.
pub fn is_exec_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_an_unknown_field_is_refused() {
        assert!(serde_json::from_str::<Call>(r#"{"call":"hello","epoch":1}"#).is_ok());
        for bad in [
            r#"{"call":"hello","epoch":1,"more":2}"#,
            r#"{"call":"hello"}"#,
            r#"{"call":"reboot"}"#,
            r#"{"call":"status","epoch":1}"#,
        ] {
            assert!(serde_json::from_str::<Call>(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn an_id_that_is_no_plain_name_is_refused() {
        assert!(is_exec_id("toolu_01-a") && is_exec_id(&"a".repeat(128)));
        for bad in ["", ".", "..", "a/b", "a b", "ä", "a\0", &"a".repeat(129)] {
            assert!(!is_exec_id(bad), "{bad:?} was accepted");
        }
    }
}
