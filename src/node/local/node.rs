//! The machine as a node: its state, and its images.

use async_trait::async_trait;

use super::{Local, unavailable};
use crate::{
    domain::{
        OrgId, SandboxId, SessionId,
        rootfs::{RootFs, StoredRootFs},
    },
    sandbox::{BuildError, Fault, Images, Install, Node, NodeStatus},
};

impl Local {
    /// Organization and session of a sandbox that exists.
    pub(crate) fn owner(&self, sandbox: SandboxId) -> Option<(OrgId, SessionId)> {
        self.layout.owner(sandbox)
    }
}

#[async_trait]
impl Node for Local {
    async fn status(&self) -> Result<NodeStatus, Fault> {
        let Self { node, capacity, orphan_after, .. } = *self;
        let orphan_seconds = orphan_after.map(|after| after.as_secs());
        Ok(NodeStatus { node, capacity, is_disk_low: self.space.is_low(), orphan_seconds })
    }
}

#[async_trait]
impl Images for Local {
    async fn has_rootfs(&self, rootfs: &RootFs) -> Result<bool, Fault> {
        Ok(self.images.is_ready(rootfs))
    }

    async fn stored_rootfs(&self, rootfs: &RootFs) -> Result<Option<StoredRootFs>, Fault> {
        self.images.stored(rootfs).map_err(|error| unavailable("the use of an image cannot be read", &error))
    }

    async fn make_image(&self, rootfs: &RootFs) -> Result<(), BuildError> {
        if self.space.is_low() {
            return Err(BuildError::Failed("the disk of the node is nearly full".to_owned()));
        }
        self.images.make_image(rootfs).await
    }

    async fn begin_install(
        &self,
        rootfs: &RootFs,
        container: SandboxId,
        certificates: &[u8],
        bytes_max: Option<u64>,
    ) -> Result<Option<Install>, BuildError> {
        let begun = self.images.begin_install(rootfs, container, bytes_max).await?;
        let Some(installation) = begun else { return Ok(None) };
        let egress = installation.egress_socket(certificates).await?;
        Ok(Some(Install { egress, run: Box::pin(installation.run()) }))
    }

    async fn build_log(&self, rootfs: &RootFs) -> Result<String, Fault> {
        Ok(self.images.said(rootfs))
    }

    async fn take_build_log(&self, rootfs: &RootFs) -> Result<String, Fault> {
        Ok(self.images.take_log(rootfs))
    }

    async fn remove_unused_rootfs(&self, surplus: &[RootFs]) -> Result<usize, BuildError> {
        self.images.reap(surplus).await
    }
}
