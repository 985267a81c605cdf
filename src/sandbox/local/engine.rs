//! What makes and ends the containers of this machine.
//!
//! Called by `local`, which knows sessions, disks and init; implemented by `oci` (an OCI
//! runtime's command line) and `docker` (a daemon). An engine knows containers by the
//! ids of sandboxes.

use std::{fmt::Debug, path::Path};

use async_trait::async_trait;

use super::{bundle::Ingredients, layout::IdRange, rootless::Users};
use crate::{
    domain::{SandboxId, SessionId},
    sandbox::{Fault, Found, Stats},
};

/// Makes, stops and ends containers.
#[async_trait]
pub trait Engine: Debug + Send + Sync {
    /// The ids of the host that a session's sandboxes use.
    fn ids(&self, session: SessionId) -> IdRange;

    /// Who acts for the users of sandboxes; the service itself where it is root.
    fn users(&self) -> Option<&Users> {
        None
    }

    /// Whether a sandbox is held to its processors and memory.
    fn holds_size(&self) -> bool {
        true
    }

    /// Whether sandboxes have gVisor for a kernel.
    fn is_gvisor(&self) -> bool {
        false
    }

    /// Makes a container and starts its init. What a failure leaves, `remove` removes.
    ///
    /// # Errors
    /// `Unavailable` with what the engine said.
    async fn run(&self, sandbox: SandboxId, of: &Ingredients<'_>, sandbox_dir: &Path) -> Result<(), Fault>;

    /// Why a container that was started is not there any more; `None` while it runs.
    async fn ended(&self, sandbox: SandboxId, sandbox_dir: &Path) -> Option<String>;

    /// Stops every process where it stands, or lets them go on. Asking for what is so
    /// already changes nothing.
    async fn freeze(&self, sandbox: SandboxId, freeze: bool) -> Result<(), Fault>;

    /// What the container takes; zeros when there is none.
    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault>;

    /// Kills and removes the container with all that belongs to it. Idempotent.
    ///
    /// # Errors
    /// `Unavailable` when a process would not vanish: then the sandbox is not over.
    async fn remove(&self, sandbox: SandboxId, sandbox_dir: &Path) -> Result<(), Fault>;

    /// Containers that may be left although nothing else of their sandboxes is: an engine
    /// that remembers them itself keeps them when the machine starts anew.
    async fn list(&self) -> Result<Vec<Found>, Fault>;
}
