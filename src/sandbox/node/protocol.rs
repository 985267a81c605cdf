//! Protocol between a worker and a node agent: one call for each connection at a time, in the frames of
//! `sojourn-init`.
//!
//! A call is a [`Request`] frame. Until it is done, the agent sends [`Answer::Waiting`] every few seconds, so that
//! a call may take as long as it needs and a dead agent is noticed. The last frame of an answer is
//! [`Answer::Done`], [`Answer::Fault`] or [`Answer::NotBuilt`]; then the connection carries the next call. Every call but
//! a signal may be repeated: a caller does so when the agent closes the connection before its answer.

use serde::{Deserialize, Serialize};

use super::grant::SignedGrant;
use crate::{
    domain::{
        OrgId, SandboxId, SessionId,
        rootfs::{RootFs, StoredRootFs},
    },
    sandbox::{
        BuildError, Capabilities, Exec, Exit, Fault, Files, Found, NodeStatus, OutputRange, Signal, Spec,
        Stats,
    },
};

/// First frame of a call. Its payload is the content of a file, or certificates.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub grant: SignedGrant,
    pub call: Call,
}

/// A call of a worker. The sandbox and the epoch are those of the grant, except for the calls of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Call {
    // With a grant of the node.
    Status {},
    KeepAlive {},
    List {},
    Touch {
        sandbox: SandboxId,
    },
    Stats {
        sandbox: SandboxId,
    },
    Destroy {
        sandbox: SandboxId,
    },
    Erase {
        org: OrgId,
        session: SessionId,
    },
    HasRootfs {
        rootfs: RootFs,
    },
    StoredRootfs {
        rootfs: RootFs,
    },
    MakeImage {
        rootfs: RootFs,
    },
    BuildLog {
        rootfs: RootFs,
    },
    TakeBuildLog {
        rootfs: RootFs,
    },
    RemoveUnusedRootfs {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        surplus: Vec<RootFs>,
    },
    /// The payload are the certificates that the installers trust. Answered by [`Answer::Begun`] or `Done`; then
    /// by [`Answer::Connection`]s until it is done.
    Install {
        rootfs: RootFs,
        container: SandboxId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_max: Option<u64>,
    },
    // With a grant of the sandbox.
    Create {
        spec: Spec,
    },
    Attach {},
    Running {},
    Freeze {},
    Quiesce {},
    /// Answered by [`Answer::Part`]s.
    Pack {},
    /// Followed by [`Sent`] frames.
    Unpack {},
    Start {
        exec: Exec,
    },
    Wait {
        exec_id: String,
    },
    Output {
        exec_id: String,
        range: OutputRange,
    },
    /// The payload is the text.
    WriteInput {
        exec_id: String,
        offset: u64,
    },
    ReadInput {
        exec_id: String,
        offset: u64,
        bytes_max: usize,
    },
    Kill {
        exec_id: String,
    },
    Signal {
        exec_id: String,
        signal: Signal,
    },
    ReadFile {
        path: String,
        offset: u64,
        bytes_max: usize,
    },
    /// The payload is the content.
    WriteFile {
        path: String,
    },
    /// Answered by [`Answer::Part`]s.
    ReadTree {
        path: String,
    },
    /// Answered by [`Answer::Part`]s.
    Scan {
        entries_max: u64,
    },
    /// The payload are the paths, each followed by a NUL. Answered by [`Answer::Part`]s.
    Fetch {},
    /// Followed by [`Sent`] frames.
    WriteTree {
        path: String,
    },
    /// Followed by [`Sent`] frames.
    WriteSkills {},
    /// The payload are the certificates that the commands trust. Answered by [`Answer::Begun`], then by
    /// [`Answer::Connection`]s until the worker closes the connection.
    EgressSocket {},
    // With either.
    /// Answered by [`Answer::Begun`]; then the connection carries the bytes of the sandbox's connection.
    EgressConnection {
        id: u64,
    },
}

/// A frame after the request of an upload.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sent {
    /// The payload is the next part of the archive.
    Part,
    /// The archive is complete.
    End,
    /// The archive could not be read to its end.
    Fault(Fault),
}

/// A frame from the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The call is in progress.
    Waiting,
    /// The payload is the next part of an archive, a scan or a fetch.
    Part,
    /// The socket is open.
    Begun,
    /// A connection of the sandbox arrived.
    Connection {
        id: u64,
    },
    Done(Done),
    Fault(Fault),
    NotBuilt(BuildError),
}

/// Result of a call that succeeded.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Done {
    Nothing,
    /// State of the node, and capabilities of its sandboxes.
    Status(NodeStatus, Capabilities),
    Found(Vec<Found>),
    Stats(Stats),
    Files(Files),
    Count(u64),
    Exit(Exit),
    /// The payload is the output.
    Output,
    /// The payload is the part of the file; its whole size.
    File(u64),
    Is(bool),
    StoredRootfs(Option<StoredRootFs>),
    /// The payload is the log of a build, UTF-8.
    Log,
}
