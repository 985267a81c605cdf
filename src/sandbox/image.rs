//! Root file systems of a node, behind one port.

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{EgressSocket, Fault};
use crate::domain::{
    SandboxId,
    rootfs::{RootFs, StoredRootFs},
};

/// Builds and finds the root file systems of sandboxes on one node.
#[async_trait]
pub trait Images: Send + Sync {
    /// Whether sandboxes can be created on it now.
    async fn has_rootfs(&self, rootfs: &RootFs) -> Result<bool, Fault>;

    /// Size and last use of one with packages. Returns `None` if it does not exist, or was built by a version that did
    /// not measure it.
    async fn stored_rootfs(&self, rootfs: &RootFs) -> Result<Option<StoredRootFs>, Fault>;

    /// Builds the image itself, without packages, unless it exists.
    async fn make_image(&self, rootfs: &RootFs) -> Result<(), BuildError>;

    /// Prepares the installation of packages over an image that exists. Returns `None` if another process has
    /// finished it meanwhile. `container` is a new, unique id; `certificates` (PEM) are those that the
    /// installers trust. A result of more than `bytes_max` is removed, and the installation fails; with 0 it does not
    /// begin.
    async fn begin_install(
        &self,
        rootfs: &RootFs,
        container: SandboxId,
        certificates: &[u8],
        bytes_max: Option<u64>,
    ) -> Result<Option<Install>, BuildError>;

    /// Latest output of the process that builds it.
    async fn build_log(&self, rootfs: &RootFs) -> Result<String, Fault>;

    /// Takes the output of a build that has ended: of the installation, else of the image.
    async fn take_build_log(&self, rootfs: &RootFs) -> Result<String, Fault>;

    /// Removes root file systems that were not used for long, and what builds left; of `surplus` also those that were
    /// not used for `ROOTFS_MIN_AGE`. Returns their number.
    async fn remove_unused_rootfs(&self, surplus: &[RootFs]) -> Result<usize, BuildError>;
}

/// A prepared installation of packages. While it exists, no other process prepares the same.
pub struct Install {
    /// Socket of the installers' network connections.
    pub egress: EgressSocket,
    /// Runs the installers and stores the result. If it is dropped, the next installation of the same packages, or
    /// [`Images::remove_unused_rootfs`], removes what is left.
    pub run: BoxFuture<'static, Result<(), BuildError>>,
}

/// Reason why a root file system is not available, by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildError {
    /// Another process of this node is building it: retry later.
    #[error("the image is being built")]
    Busy,
    /// A retry fails too, until the operator or the organization changes something.
    #[error("{0}")]
    Failed(String),
}

impl From<std::io::Error> for BuildError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
