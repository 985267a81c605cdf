//! Engines that create and end containers on this machine.
//!
//! Called by `local`, which handles sessions, disks and init; implemented by `oci` (an OCI runtime's command
//! line), `rootless` (the same without root) and `docker` (a daemon). An engine identifies containers by the
//! ids of sandboxes.

use std::{fmt::Debug, path::Path};

use async_trait::async_trait;

use super::{bundle::ContainerSpec, layout::IdRange, rootless::Users};
use crate::{
    domain::{SandboxId, SessionId},
    sandbox::{Fault, Found, Stats},
};

/// Creates, freezes and ends containers.
#[async_trait]
pub(super) trait Engine: Debug + Send + Sync {
    /// Host ids that a session's sandboxes use.
    fn ids(&self, session: SessionId) -> IdRange;

    /// Subordinate users of a service without root; `None` if it is root.
    fn users(&self) -> Option<&Users> {
        None
    }

    /// Whether CPU and memory limits are enforced.
    fn enforces_size(&self) -> bool {
        true
    }

    /// Whether sandboxes run on gVisor's kernel.
    fn is_gvisor(&self) -> bool {
        false
    }

    /// Moves this process out of the cgroup of its service, where that is possible, so that it is not killed with
    /// the service.
    fn outlive_service(&self) {}

    /// Creates a container and starts its init. After a failure, `remove` removes the remains.
    ///
    /// # Errors
    /// `Unavailable` with the engine's message.
    async fn run(&self, sandbox: SandboxId, of: &ContainerSpec<'_>, sandbox_dir: &Path) -> Result<(), Fault>;

    /// Reason why a started container is not running; `None` while it runs.
    async fn ended(&self, sandbox: SandboxId, sandbox_dir: &Path) -> Option<String>;

    /// Freezes or thaws every process. No effect if it is already in that state.
    async fn freeze(&self, sandbox: SandboxId, freeze: bool) -> Result<(), Fault>;

    /// Resource usage of the container; zeros if it does not exist.
    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault>;

    /// Kills and removes the container and everything that belongs to it. Idempotent.
    ///
    /// # Errors
    /// `Unavailable` when a process does not end in time; the sandbox then still exists.
    async fn remove(&self, sandbox: SandboxId, sandbox_dir: &Path) -> Result<(), Fault>;

    /// Lists containers that may exist although nothing else of their sandboxes does, because the engine
    /// stores them itself across a reboot of the machine.
    async fn list(&self) -> Result<Vec<Found>, Fault>;
}
