//! The calls that a worker makes and the answers that it gets.
//!
//! One call and one answer per connection. A call that changes something carries
//! the epoch of the lease; the sandbox keeps the highest that it has seen and
//! refuses lower ones, so a worker that was frozen and thawed changes nothing.

use serde::{Deserialize, Serialize};

/// Where the session's files are; also the directory of relative paths.
pub const WORKSPACE: &str = "/workspace";
/// Where the command's user is at home; beside the workspace all that a checkpoint holds.
pub const HOME: &str = "/home/agent";
/// The directory that worker and sandbox share; 0700 of the sandbox's uid 0.
pub const CONTROL_DIR: &str = "/.sojourn/control";
/// The socket in that directory.
pub const SOCKET_NAME: &str = "init.sock";
/// Where the output of commands is kept; 0700 of the sandbox's uid 0.
pub const OUTPUT_DIR: &str = "/.sojourn/output";
/// This program, as the sandbox sees it.
pub const PROGRAM: &str = "/.sojourn/sojourn-init";
/// The counter of the sandbox's out-of-memory kills, a file of its cgroup.
pub const OOM_COUNTER: &str = "/.sojourn/oom";
/// What the host shows of the sandbox's way out; the sandbox cannot write there.
pub const EGRESS_DIR: &str = "/.sojourn/egress";
/// The socket of the egress proxy in that directory.
pub const PROXY_SOCKET: &str = "proxy.sock";
/// What the sandbox's programs trust: public roots and the sandbox's own authority.
pub const CERTIFICATES: &str = "/.sojourn/egress/certificates.pem";
/// Where the sandbox's programs find their proxy, on the sandbox's loopback.
pub const PROXY_PORT: u16 = 3_128;
/// In front of each line that an installer prints, and of the line that says its exit code.
pub const INSTALL_OUTPUT: &str = "| ";
pub const INSTALL_ENDED: &str = "ended ";
/// User and group of every command and file operation.
pub const COMMAND_UID: u32 = 1_000;

/// As `bash -c JOIN_OUTPUTS LINE` a line for bash whose outputs are one, in the order in which
/// they are written. Whoever runs these words may join them itself, which saves a shell.
pub const JOIN_OUTPUTS: &str = "exec bash -c -- \"$0\" 2>&1";

/// What a worker asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// The holder of the lease introduces itself; raises the epoch.
    Hello { epoch: i64 },
    /// The highest epoch and what runs.
    Status {},
    /// Starts a command; the same id twice is the first one.
    Start { epoch: i64, exec: ExecSpec },
    /// The command's outcome, or `Running` after `timeout_ms`.
    Wait { exec_id: String, timeout_ms: u64 },
    /// Kept bytes of a command's output from `offset` on.
    Output { exec_id: String, stream: Stream, offset: u64, bytes_max: usize },
    /// Ends a command and its descendants; answered when none is left.
    Kill { epoch: i64, exec_id: String },
    /// Sends a signal to a command and its descendants; answered when its runner knows.
    Signal { epoch: i64, exec_id: String, signal: Signal },
    /// Part of a file, read as the command's user.
    ReadFile { path: String, offset: u64, bytes_max: usize },
    /// Replaces a file by the payload, written as the command's user.
    WriteFile { epoch: i64, path: String },
    /// The session's files as a tar archive in parts, made as the command's user while
    /// everything else in the sandbox stands still.
    Pack { epoch: i64 },
    /// Unpacks the archive that follows in parts, as the command's user.
    Unpack { epoch: i64 },
    /// What is below a directory as a tar archive in parts, read as the command's user
    /// while others go on working there.
    ReadTree { path: String },
    /// Unpacks the archive that follows in parts below a directory, over what is there,
    /// as the command's user.
    WriteTree { epoch: i64, path: String },
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
    /// Between TERM and KILL.
    pub grace_ms: u64,
    /// Kept bytes per stream.
    pub output_bytes_max: u64,
}

/// One of the two outputs of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// The file's name in the command's directory.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A signal that a command may be sent.
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

/// What the sandbox answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    Done {},
    /// The highest epoch, the commands that run or left processes behind, and how many
    /// of them are not over.
    Status {
        epoch: i64,
        execs: u64,
        running: u64,
    },
    /// The command was not over in the time that was asked for.
    Running {},
    Exit(Outcome),
    /// The payload is output.
    Output {},
    /// The payload is part of a file of this size.
    File {
        size: u64,
    },
    /// The payload is the next part of an archive; `Done` follows the last one. The
    /// worker sends the same when it is the one who has the archive.
    Part {},
    Fault {
        kind: FaultKind,
        message: String,
    },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    pub cause: Cause,
    /// Bytes that it wrote until then, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration_ms: u64,
}

/// What ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    Exited,
    Timeout,
    Oom,
    DiskFull,
    Killed,
}

/// Why a call failed, by what the caller will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The epoch is lower than one that the sandbox has seen.
    Stale,
    /// No such command or file.
    NotFound,
    /// The same call can never succeed.
    Refused,
    /// Not now: no process, memory or slot to spare.
    Unavailable,
}

impl Answer {
    /// A failure with its reason.
    pub fn fault(kind: FaultKind, message: impl Into<String>) -> Self {
        Self::Fault { kind, message: message.into() }
    }
}

/// Whether this may name a command: it becomes a directory's name.
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
