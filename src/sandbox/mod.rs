//! Sandboxes in which tools run, behind one port.
//!
//! Called by `worker` (create, attach, destroy, reap) and `tool` (exec, files);
//! calls an OCI runtime and `sojourn-init`, PID 1 of every sandbox. The sandbox is
//! hostile: everything that comes out of it is bounded and parsed as such, and
//! the host never opens a path that a sandbox can write.

pub mod checkpoint;
mod client;
mod egress_socket;
pub mod local;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::domain::{OrgId, SandboxId, SessionId, rootfs::RootFs};

pub use crate::domain::operation::{OutputStream, Signal};
pub use egress_socket::EgressSocket;
pub use sojourn_init::protocol::{CERTIFICATES, JOIN_OUTPUTS, PROXY_PORT};

/// A provider of sandboxes.
///
/// Every call that changes a sandbox carries the lease's epoch; the sandbox keeps the
/// highest that it has seen and refuses lower ones with [`Fault::Stale`].
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// What this provider can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes the sandbox and waits until its init answers. Idempotent by sandbox id.
    /// Returns what the session's files are in it.
    ///
    /// # Errors
    /// `Unavailable` when it did not start in time; nothing is left behind.
    async fn create(&self, spec: &Spec, epoch: i64) -> Result<Files, Fault>;

    /// Says hello to a sandbox that may exist already, raising its epoch; thaws it.
    ///
    /// # Errors
    /// `Gone` when there is no such sandbox; `Stale` when the sandbox has seen a higher epoch;
    /// `Unavailable` also when its files were never restored.
    async fn attach(&self, fence: SandboxFence) -> Result<(), Fault>;

    /// Commands of the sandbox that are not over.
    async fn running(&self, fence: SandboxFence) -> Result<u64, Fault>;

    /// Stops every process of the sandbox where it stands, until it is attached again.
    ///
    /// # Errors
    /// `Stale` when a higher epoch has attached: a late caller never stops a sandbox that
    /// another one works with. `Refused` where sandboxes cannot be frozen.
    async fn freeze(&self, fence: SandboxFence) -> Result<(), Fault>;

    /// Lets a frozen sandbox go on. Nothing happens to one that runs.
    async fn thaw(&self, fence: SandboxFence) -> Result<(), Fault>;

    /// Tells the sandbox that its node lives: one that nobody calls ends itself.
    async fn touch(&self, sandbox: SandboxId) -> Result<(), Fault>;

    /// What the sandbox takes at the moment.
    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault>;

    /// Sends the session's files as a tar archive, made by the sandbox itself while nothing
    /// else in it runs. Returns when the last part is taken; with an error, what was
    /// sent is no archive.
    async fn pack(&self, fence: SandboxFence, parts: mpsc::Sender<Bytes>) -> Result<(), Fault>;

    /// Fills a sandbox that [`Files::Fresh`] was told of with the archive that `parts`
    /// brings. Until this is done the sandbox and its files are not used.
    ///
    /// # Errors
    /// The fault that `parts` brings; the sandbox must be destroyed then.
    async fn unpack(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault>;

    /// Starts a command and returns at once. A second start with the same id is
    /// the first one: nothing runs twice.
    async fn start(&self, fence: SandboxFence, exec: &Exec) -> Result<(), Fault>;

    /// Waits until a command is over. Dropping the future leaves it running.
    ///
    /// # Errors
    /// `NotFound` when the sandbox never saw the id.
    async fn wait(&self, fence: SandboxFence, exec_id: &str) -> Result<Exit, Fault>;

    /// Bytes of a command's output from `offset` on, at most `bytes_max`; empty
    /// at its present end. Works while it runs and after.
    async fn output(&self, fence: SandboxFence, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault>;

    /// Ends a command and all its descendants: TERM, the grace, then KILL.
    /// Returns when none is left.
    async fn kill(&self, fence: SandboxFence, exec_id: &str) -> Result<(), Fault>;

    /// Sends a signal to a command and all its descendants, without waiting for what they
    /// make of it. One that is over gets none.
    async fn signal(&self, fence: SandboxFence, exec_id: &str, signal: Signal) -> Result<(), Fault>;

    /// Reads part of a file as the command's user.
    async fn read_file(
        &self,
        fence: SandboxFence,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault>;

    /// Replaces a file atomically as the command's user; makes its directories.
    async fn write_file(&self, fence: SandboxFence, path: &str, content: &[u8]) -> Result<(), Fault>;

    /// Sends what is below a directory as a tar archive, read as the command's user while
    /// others go on working there; the names in it are relative to the directory.
    async fn read_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault>;

    /// Unpacks an archive below a directory as the command's user, over what is there; no
    /// entry leads out of it.
    ///
    /// # Errors
    /// `Refused` with the entry's name; what came before it stays.
    async fn write_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault>;

    /// Opens the sandbox's only way out: who accepts at the egress socket is the proxy that its
    /// commands find. A second egress socket takes the place of the first.
    ///
    /// # Errors
    /// `Gone` when there is no such sandbox; `Refused` by a provider without egress sockets.
    async fn egress_socket(&self, fence: SandboxFence) -> Result<EgressSocket, Fault>;

    /// Ends the sandbox. The session's disk stays. Idempotent.
    async fn destroy(&self, sandbox: SandboxId) -> Result<(), Fault>;

    /// Removes the session's disk. Idempotent; no sandbox may be alive on it.
    async fn erase(&self, org: OrgId, session: SessionId) -> Result<(), Fault>;

    /// The sandboxes and disks that really exist here, whoever made them.
    async fn list(&self) -> Result<Vec<Found>, Fault>;
}

/// What a provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Who can reach a live sandbox.
    pub reach: Reach,
    /// Whether a sandbox is held to the processors and the memory of its limits.
    pub holds_size: bool,
}

/// Who can reach a live sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only the node that made it.
    Node,
    /// Any worker.
    Any,
}

/// A sandbox and the epoch of the lease that speaks to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxFence {
    pub sandbox: SandboxId,
    pub epoch: i64,
}

/// The sandbox that is wanted.
#[derive(Clone, Debug)]
pub struct Spec {
    pub sandbox: SandboxId,
    pub org: OrgId,
    pub session: SessionId,
    pub limits: SandboxLimits,
    /// What it has for programs; one that is not there yet is not waited for.
    pub rootfs: RootFs,
    /// Variables that every command of the sandbox sees.
    pub env: Vec<(String, String)>,
    /// Sandboxes of the session of which one was the last to change its files: files that
    /// another one left are out of date.
    pub previous: Vec<SandboxId>,
    /// A fresh sandbox gets its files by `unpack` before it is used.
    pub restores: bool,
}

/// What a new sandbox finds of its session's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// All that the sandbox before it left.
    Kept,
    /// Nothing.
    Fresh,
}

/// What a sandbox takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    pub memory_bytes: u64,
    pub processes: u64,
    /// Time of processors that it has used since it was made.
    pub cpu: Duration,
    /// It was frozen and nothing has let it go on.
    pub is_frozen: bool,
}

/// What a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    /// Memory, swap included, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// The session's files, in bytes.
    pub disk_bytes: u64,
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self { cpu_millis: 2_000, memory_bytes: 2 << 30, pids: 512, disk_bytes: 10 << 30 }
    }
}

/// A command to run.
#[derive(Clone, Debug)]
pub struct Exec {
    /// `[A-Za-z0-9_-]`, 1 to 128 characters, unique within the session.
    pub id: String,
    /// Program and arguments; the program is looked up in the sandbox's PATH.
    pub argv: Vec<String>,
    /// Absolute path; `/workspace` when empty.
    pub cwd: String,
    /// Variables beyond the sandbox's own.
    pub env: Vec<(String, String)>,
    /// Wall time at most.
    pub timeout: Duration,
    /// Kept output per stream at most, in bytes.
    pub output_bytes_max: u64,
}

/// Which bytes of a command's output are wanted.
#[derive(Clone, Copy, Debug)]
pub struct OutputRange {
    pub stream: OutputStream,
    pub offset: u64,
    pub bytes_max: usize,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// What ended it.
    pub cause: Cause,
    /// Bytes it wrote, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration: Duration,
}

/// What ended a command. Exit 137 alone does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself.
    Exited,
    /// Its wall time was over.
    Timeout,
    /// The sandbox ran out of memory (from the cgroup's counters).
    Oom,
    /// It failed, and the session's disk had no room left.
    DiskFull,
    /// It was killed on request.
    Killed,
}

impl Cause {
    /// The word in the log.
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

/// Something that exists at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub org: OrgId,
    pub session: SessionId,
    /// The sandbox, or `None` for a disk without one.
    pub sandbox: Option<SandboxId>,
}

/// Why a call to a sandbox failed, by what the caller will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The sandbox does not exist any more: make another.
    #[error("the sandbox is gone")]
    Gone,
    /// Another worker holds the session now: stop.
    #[error("another worker holds this sandbox")]
    Stale,
    /// No such file or command.
    #[error("{0}")]
    NotFound(String),
    /// The request cannot succeed (a bad path, a directory, no permission).
    #[error("{0}")]
    Refused(String),
    /// The provider could not do it now: try again, bounded.
    #[error("the sandbox is not available: {0}")]
    Unavailable(String),
}
