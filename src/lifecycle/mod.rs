//! Sandbox lifecycle under a lease: acquire, prepare, freeze, thaw, hibernate, restore, rotate, destroy.
//!
//! Called by `turn` and `operation` through a [`LeasedSandbox`], and by `worker` between turns
//! through [`SandboxSession::idle`]. Calls a sandbox provider, the egress proxy and the blob store.
//! Every change is in the session's log before it is in the sandbox's row.

mod checkpoints;
mod egress;
mod hook;
mod idle;
mod leased_sandbox;
mod rootfs;
mod session;
mod source;
mod spec;

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    blob::Blobs,
    domain::{Session, exit::PreparationFailure},
    journal::{Journal, Writer},
    net::LocalDirectories,
    sandbox::{Sandbox, local::image::Images},
    store::{self, Store, notification::Notifications, record::Fence},
};

pub(crate) use checkpoints::blobs_of_session;
pub use egress::Network;
pub(crate) use egress::{EgressAttachment, EgressPolicy};
pub use idle::IdlePolicy;
pub(crate) use idle::Next;
pub(crate) use leased_sandbox::{LeasedSandbox, SandboxHandle};
pub(crate) use rootfs::{BUILD_FAILED, RootfsStatus, check_rootfs, lacks_rootfs};
pub(crate) use session::SandboxSession;
pub(crate) use spec::SandboxSpec;

/// The sandboxes of a worker's node, and where their state is stored. Cheap to clone.
#[derive(Clone)]
pub struct Sandboxes {
    pub store: Store,
    pub journal: Journal,
    pub notifications: Notifications,
    /// Stores checkpoints.
    pub blobs: Blobs,
    /// Creates sandboxes; `Err` is the reason why this worker has no provider.
    pub provider: Result<Arc<dyn Sandbox>, String>,
    /// Root file systems of this node, where the provider uses them.
    pub images: Option<Images>,
    /// Image of environments that name none.
    pub default_image: String,
    /// Network access of the sandboxes.
    pub network: Network,
    /// Directories below which repositories may be cloned.
    pub local_sources: LocalDirectories,
    /// Idle times after which sandboxes are frozen and hibernated.
    pub idle: IdlePolicy,
    /// The node whose sandboxes this worker reaches.
    pub node: Uuid,
    /// Time for which sandboxes of a node without heartbeats keep running.
    pub orphan_timeout: Duration,
}

/// Why a session has no usable sandbox.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Error {
    /// Another worker holds the lease of the session; stop.
    #[error("another worker holds the sandbox")]
    Stale,
    /// No sandbox started after bounded retries.
    #[error("no sandbox is available: {0}")]
    Unavailable(String),
    /// The sandbox cannot be prepared as the environment requires; a retry does not help.
    #[error("the sandbox could not be prepared: {1}")]
    PreparationFailure(PreparationFailure, String),
    /// The database or a blob is unreachable; ask again later.
    #[error("the log is unreachable: {0}")]
    LogUnavailable(String),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::LogUnavailable(error.to_string())
    }
}

impl Sandboxes {
    /// The sandbox of the session that `writer` holds. Creates nothing before the first acquire.
    pub(crate) fn lease(
        &self,
        writer: Writer,
        spec: SandboxSpec,
        policy: EgressPolicy,
    ) -> Arc<LeasedSandbox> {
        let origin = self.journal.origin();
        let egress = EgressAttachment::new(self.network.clone(), writer.clone(), origin, policy);
        Arc::new(LeasedSandbox::new(self.clone(), writer, Arc::new(egress), spec))
    }

    /// The sandbox of a session between turns.
    pub(crate) fn session(&self, fence: Fence, session: &Session) -> SandboxSession {
        let spec = SandboxSpec::of(session, &self.default_image);
        SandboxSession { sandboxes: self.clone(), fence, turn: None, spec }
    }
}
