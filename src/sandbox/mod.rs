//! Sandboxes in which tools run, behind one port.
//!
//! Called by `lifecycle` (create, attach, freeze, destroy), `tool` and `operation` (commands, files) and
//! `worker` (reaper). Implemented by `node` for the sandboxes of this machine, and here for those of a node agent.
//! Contains the client of `sojourn-init`, PID 1 of every sandbox. The sandbox is untrusted: its responses are
//! bounded and validated, and the host never opens a path that a sandbox can write.

pub mod checkpoint;
pub(crate) mod client;
pub(crate) mod egress_socket;
mod fetched;
pub(crate) mod frames;
mod free_space;
mod image;
pub mod node;
pub(crate) mod scan;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::domain::{
    OrgId, SandboxId, SessionId,
    environment::{NodeCapacity, Size},
    rootfs::RootFs,
};

pub use crate::domain::operation::{OutputStream, Signal};
pub use egress_socket::{EgressConnection, EgressSocket};
pub use fetched::{Fetched, FetchedFile, LargeFile};
pub use free_space::FreeSpace;
pub use image::{BuildError, Images, Install};
pub use sojourn_init::{
    protocol::{CERTIFICATES, JOIN_OUTPUTS, PROXY_PORT, SKILLS, SKILLS_LIST},
    scan::{EntryKind, ScanEntry},
};

/// A provider of sandboxes.
///
/// Every call that changes a sandbox carries the lease's epoch. The sandbox stores the highest epoch that it
/// has seen and refuses lower ones with [`Fault::Stale`].
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Capabilities of this provider.
    fn capabilities(&self) -> Capabilities;

    /// Creates the sandbox and waits until its init answers. Idempotent by sandbox id. Returns the state of
    /// the session's files in it.
    ///
    /// # Errors
    /// `Unavailable` when it did not start in time; its remains are removed.
    async fn create(&self, spec: &Spec, epoch: i64) -> Result<Files, Fault>;

    /// Connects to an existing sandbox, raises its epoch, and thaws it if it is frozen.
    ///
    /// # Errors
    /// `Gone` when there is no such sandbox; `Stale` when the sandbox has seen a higher epoch; `Unavailable`
    /// also when the restore of its files did not finish.
    async fn attach(&self, fence: SandboxFence) -> Result<(), Fault>;

    /// Number of running commands in the sandbox.
    async fn running(&self, fence: SandboxFence) -> Result<u64, Fault>;

    /// Freezes every process of the sandbox until the next `attach`.
    ///
    /// # Errors
    /// `Stale` when a higher epoch has attached: a late caller never freezes a sandbox that another worker
    /// uses. `Refused` where sandboxes cannot be frozen.
    async fn freeze(&self, fence: SandboxFence) -> Result<(), Fault>;

    /// Records a heartbeat of the service. Without one for their orphan timeout its sandboxes are ended, also
    /// frozen ones.
    async fn keep_alive(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Resets the sandbox's orphan timeout; a sandbox without calls ends itself.
    async fn touch(&self, sandbox: SandboxId) -> Result<(), Fault>;

    /// Current resource usage of the sandbox.
    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault>;

    /// Stops every process of the sandbox until the next `attach`, or call for a command: no file is newer than those that
    /// are packed meanwhile. Unlike after `freeze`, the sandbox answers.
    async fn quiesce(&self, fence: SandboxFence) -> Result<(), Fault>;

    /// Sends the session's files as a tar archive. The sandbox packs them while nothing else runs in it.
    /// Returns when the last part was received; after an error, the parts sent are incomplete.
    async fn pack(&self, fence: SandboxFence, parts: mpsc::Sender<Bytes>) -> Result<(), Fault>;

    /// Restores the files of a sandbox that was created with [`Files::Fresh`] from an archive. Until this is
    /// done, the sandbox and its files must not be used.
    ///
    /// # Errors
    /// Also a fault sent through `parts`; the sandbox must be destroyed then.
    async fn unpack(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault>;

    /// Starts a command and returns at once. Idempotent by the id of the command: nothing runs twice.
    async fn start(&self, fence: SandboxFence, exec: &Exec) -> Result<(), Fault>;

    /// Waits for the end of a command. Dropping the future leaves it running.
    ///
    /// # Errors
    /// `NotFound` when the sandbox never saw the id.
    async fn wait(&self, fence: SandboxFence, exec_id: &str) -> Result<Exit, Fault>;

    /// Reads a command's output from `offset`, at most `bytes_max` bytes; empty at the current end. Works
    /// while the command runs and afterwards.
    async fn output(&self, fence: SandboxFence, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault>;

    /// Appends text to the input of a service, at `offset`, at most `EXEC_INPUT_PART_BYTES_MAX` bytes. Bytes that
    /// the input has there already are skipped: a repeated call changes nothing.
    ///
    /// # Errors
    /// `Refused` when the command has ended or is no service, when its input is full, when `offset` leaves a gap, or when
    /// it got another text there.
    async fn write_input(
        &self,
        fence: SandboxFence,
        exec_id: &str,
        offset: u64,
        text: &str,
    ) -> Result<(), Fault>;

    /// Reads the input that a service got from `offset`, at most `bytes_max` bytes; empty at the current end. Works also
    /// when it has ended.
    async fn read_input(
        &self,
        fence: SandboxFence,
        exec_id: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Fault>;

    /// Ends a command and all its descendants: SIGTERM, the grace period, then SIGKILL. Returns when none is
    /// left.
    async fn kill(&self, fence: SandboxFence, exec_id: &str) -> Result<(), Fault>;

    /// Sends a signal to a command and all its descendants, without waiting for the effect. No effect on a
    /// command that has ended.
    async fn signal(&self, fence: SandboxFence, exec_id: &str, signal: Signal) -> Result<(), Fault>;

    /// Reads part of a file as the command's user.
    async fn read_file(
        &self,
        fence: SandboxFence,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault>;

    /// Replaces a file atomically as the command's user; creates its parent directories.
    async fn write_file(&self, fence: SandboxFence, path: &str, content: &[u8]) -> Result<(), Fault>;

    /// Sends a directory as a tar archive, read as the command's user while commands may change the files;
    /// names are relative to the directory.
    async fn read_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault>;

    /// Lists the session's files, read as the command's user while commands may change them: depth first, names
    /// sorted, with the roots `home` and `workspace`. Sockets, pipes and devices are left out, and files and
    /// directories that their owner closed; no mode is changed.
    ///
    /// # Errors
    /// `Refused` when there are more than `entries_max`, or for an older sandbox ([`Fault::is_unsupported`]).
    async fn scan(&self, fence: SandboxFence, entries_max: u64) -> Result<Vec<ScanEntry>, Fault>;

    /// Sends the content of files at paths of a scan, read as the command's user while commands may change them. No
    /// link is followed. [`Fetched`] reads the parts.
    async fn fetch(
        &self,
        fence: SandboxFence,
        paths: &[Vec<u8>],
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault>;

    /// Unpacks an archive into a directory as the command's user, over existing files. Entries cannot leave
    /// the directory.
    ///
    /// # Errors
    /// `Refused` with the entry's name; entries before it remain.
    async fn write_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault>;

    /// Replaces the content of [`SKILLS`] by an archive. The sandbox's commands can read it and not change it.
    ///
    /// # Errors
    /// `Refused` with the entry's name; entries before it remain.
    async fn write_skills(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault>;

    /// Opens the socket that carries all network traffic of the sandbox, and publishes `certificates` (PEM) to
    /// its commands as those to trust. The acceptor of its connections is the proxy that the sandbox's commands
    /// use. A new egress socket replaces the previous one.
    ///
    /// # Errors
    /// `Gone` when there is no such sandbox; `Refused` by a provider without egress sockets.
    async fn egress_socket(&self, fence: SandboxFence, certificates: &[u8]) -> Result<EgressSocket, Fault>;

    /// Ends the sandbox. The session's disk is retained. Idempotent.
    async fn destroy(&self, sandbox: SandboxId) -> Result<(), Fault>;

    /// Removes the session's disk. Idempotent; no sandbox may use the disk.
    async fn erase(&self, org: OrgId, session: SessionId) -> Result<(), Fault>;

    /// Lists the existing sandboxes and disks of this provider, whichever process created them.
    async fn list(&self) -> Result<Vec<Found>, Fault>;
}

/// A machine with sandboxes, and with the root file systems that they use.
#[async_trait]
pub trait Node: Sandbox + Images {
    /// The machine now.
    async fn status(&self) -> Result<NodeStatus, Fault>;
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its identity, which lasts as long as its data directory.
    pub node: Uuid,
    /// Resources of all its sandboxes together.
    pub capacity: NodeCapacity,
    /// Whether its disk has less free space than it keeps: then it makes no sandbox and no image.
    pub is_disk_low: bool,
    /// Seconds after which its sandboxes end when no worker contacts them; `None` is never, or not known.
    #[serde(default)]
    pub orphan_seconds: Option<u64>,
}

/// Capabilities of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Processes that can reach a live sandbox.
    pub reach: Reach,
    /// Whether CPU and memory limits are enforced.
    pub enforces_size: bool,
    /// Whether its system calls are served by a kernel of its own.
    pub has_own_kernel: bool,
}

/// Processes that can reach a live sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Only the node that created it.
    Node,
    /// Any worker.
    Any,
}

/// A sandbox of a session, and the epoch of the caller's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxFence {
    pub org: OrgId,
    pub session: SessionId,
    pub sandbox: SandboxId,
    pub epoch: i64,
}

/// Specification of a new sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub sandbox: SandboxId,
    pub org: OrgId,
    pub session: SessionId,
    pub limits: SandboxLimits,
    /// Root file system; `create` fails if it does not exist on the node yet.
    pub rootfs: RootFs,
    /// Environment variables of every command in the sandbox.
    pub env: Vec<(String, String)>,
    /// Sandboxes of the session that may have changed its files last. Files last changed by any other sandbox
    /// are out of date.
    pub previous: Vec<SandboxId>,
    /// Whether `unpack` must restore a sandbox with `Files::Fresh` before its use.
    pub restores: bool,
}

impl Spec {
    /// The sandbox under a lease.
    pub fn fence(&self, epoch: i64) -> SandboxFence {
        let Self { org, session, sandbox, .. } = *self;
        SandboxFence { org, session, sandbox, epoch }
    }
}

/// State of the session's files in a new sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Files {
    /// All files of the previous sandbox.
    Kept,
    /// No files.
    Fresh,
}

/// Resource usage of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub memory_bytes: u64,
    pub processes: u64,
    /// CPU time used since the sandbox was created.
    pub cpu: Duration,
    /// Whether the sandbox is frozen.
    pub is_frozen: bool,
}

/// Resource limits of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// CPU limit in thousandths of a CPU.
    pub cpu_millis: u32,
    /// Memory limit in bytes, including swap.
    pub memory_bytes: u64,
    /// Maximum number of processes and threads.
    pub pids: u32,
    /// Maximum size of the session's files, in bytes.
    pub disk_bytes: u64,
}

impl From<SandboxLimits> for Size {
    fn from(limits: SandboxLimits) -> Self {
        let SandboxLimits { cpu_millis, memory_bytes, pids, disk_bytes } = limits;
        Self { cpu_millis, memory_bytes, pids, disk_bytes }
    }
}

impl SandboxLimits {
    /// These limits, where they are below `max`.
    pub fn at_most(self, max: Size) -> Self {
        Self {
            cpu_millis: self.cpu_millis.min(max.cpu_millis),
            memory_bytes: self.memory_bytes.min(max.memory_bytes),
            pids: self.pids.min(max.pids),
            disk_bytes: self.disk_bytes.min(max.disk_bytes),
        }
    }
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self { cpu_millis: 2_000, memory_bytes: 2 << 30, pids: 512, disk_bytes: 10 << 30 }
    }
}

/// A command to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exec {
    /// `[A-Za-z0-9_-]`, 1 to 128 characters, unique within the session.
    pub id: String,
    /// Program and arguments; the program is looked up in the sandbox's PATH.
    pub argv: Vec<String>,
    /// Absolute path; `/workspace` when empty.
    pub cwd: String,
    /// Environment variables in addition to the sandbox's own.
    pub env: Vec<(String, String)>,
    /// Maximum wall-clock time.
    pub timeout: Duration,
    /// Maximum stored output per stream, in bytes.
    pub output_bytes_max: u64,
    /// Whether it takes input and stays: a service does not count as running, so that its sandbox can rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_service: bool,
}

/// A range of a command's output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct OutputRange {
    pub stream: OutputStream,
    pub offset: u64,
    pub bytes_max: usize,
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// Reason for the end.
    pub cause: Cause,
    /// Bytes that the command wrote, including those that were not stored.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration: Duration,
}

/// Reason why a command ended. Exit code 137 alone is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It exited by itself.
    Exited,
    /// Its wall-clock time was exceeded.
    Timeout,
    /// The sandbox ran out of memory (from the cgroup's counters).
    Oom,
    /// It failed, and the session's disk was full.
    DiskFull,
    /// It was killed on request.
    Killed,
}

impl Cause {
    /// Name of the cause in the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Timeout => "timeout",
            Self::Oom => "oom",
            Self::DiskFull => "disk_full",
            Self::Killed => "killed",
        }
    }
}

/// Part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    pub content: Vec<u8>,
    /// Size of the whole file, in bytes.
    pub size: u64,
}

/// A sandbox or disk that exists at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub org: OrgId,
    pub session: SessionId,
    /// The sandbox, or `None` for a disk without one.
    pub sandbox: Option<SandboxId>,
}

/// Failure of a call to a sandbox, by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The sandbox no longer exists: create another.
    #[error("the sandbox is gone")]
    Gone,
    /// Another worker holds the session's lease: stop.
    #[error("another worker holds this sandbox")]
    Stale,
    /// No such file or command.
    #[error("{0}")]
    NotFound(String),
    /// The request cannot succeed (a bad path, a directory, no permission).
    #[error("{0}")]
    Refused(String),
    /// Temporary failure of the provider: retry with a limit.
    #[error("the sandbox is not available: {0}")]
    Unavailable(String),
}
