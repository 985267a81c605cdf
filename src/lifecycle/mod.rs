//! Sandbox lifecycle under a lease: acquire, prepare, freeze, thaw, hibernate, restore, rotate, destroy.
//!
//! Called by `turn` and `operation` through a [`LeasedSandbox`], and by `worker` between turns
//! through [`SandboxSession::idle`]. Calls a sandbox provider, the egress proxy and the blob store.
//! Every change is in the session's log before it is in the sandbox's row.

mod admission;
mod checkpoints;
mod creation;
mod egress;
mod error;
mod hook;
mod idle;
mod leased_sandbox;
mod nodes;
mod placed_files;
mod placed_skills;
mod rootfs;
mod session;
mod source;
mod spec;

use std::time::Duration;

use crate::{
    blob::Blobs,
    file::Files,
    journal::Journal,
    net::LocalDirectories,
    sandbox::FreeSpace,
    skill::Skills,
    store::{Store, notification::Notifications},
};

pub(crate) use admission::Limits;
pub(crate) use checkpoints::blobs_of_session;
pub(crate) use egress::Network;
pub(crate) use egress::{EgressAttachment, EgressPolicy};
pub(crate) use error::Error;
pub(crate) use idle::IdlePolicy;
pub(crate) use idle::Next;
pub(crate) use leased_sandbox::{LeasedSandbox, SandboxHandle, Use};
pub(crate) use nodes::{Nodes, WorkerNode};
pub(crate) use rootfs::{BUILD_FAILED, RootfsStatus, check_rootfs, lacks_rootfs};
pub(crate) use spec::SandboxSpec;

/// The sandboxes of a worker's nodes, and where their state is stored. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sandboxes {
    pub store: Store,
    pub journal: Journal,
    pub notifications: Notifications,
    /// Stores checkpoints.
    pub blobs: Blobs,
    /// Files of the sessions' messages.
    pub files: Files,
    /// Skills of the sessions.
    pub skills: Skills,
    /// The machines on which sandboxes are created.
    pub nodes: Nodes,
    /// Image of environments that name none.
    pub default_image: String,
    /// Network access of the sandboxes.
    pub network: Network,
    /// Directories below which repositories may be cloned.
    pub local_sources: LocalDirectories,
    /// Limits of admission.
    pub limits: Limits,
    /// Disk of the data directory of this process, with the blobs of a deployment that has no bucket.
    pub disk: FreeSpace,
    /// Idle times after which sandboxes are frozen and hibernated.
    pub idle: IdlePolicy,
    /// Time for which sandboxes of a node without heartbeats keep running.
    pub orphan_timeout: Duration,
}
