//! Node upkeep: heartbeat, reaper of sandboxes, disks and root file systems without an owner.

use std::collections::HashSet;

use futures::StreamExt;
use metrics::gauge;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    base::limit::{NODE_HEARTBEAT_INTERVAL, REAP_EVERY_HEARTBEATS, SANDBOX_KEEPALIVES_MAX},
    lifecycle::Sandboxes,
    sandbox::Sandbox,
    store::sandbox::Liveness,
};

impl Worker {
    /// Sends the node's heartbeat; every few heartbeats removes resources without an owner.
    pub(super) async fn reap(self, stop: CancellationToken) {
        let mut beats = interval(NODE_HEARTBEAT_INTERVAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0u32;
        while stop.run_until_cancelled(beats.tick()).await.is_some() {
            self.beat().await;
            if count.is_multiple_of(REAP_EVERY_HEARTBEATS) {
                self.remove_unused().await;
            }
            count = count.wrapping_add(1);
        }
    }

    /// Records that the node is there, and lets its sandboxes live on. A node that does not answer sends no heartbeat.
    async fn beat(&self) {
        let Sandboxes { store, node, orphan_timeout, provider, .. } = &self.runtime.sandboxes;
        let (capacity, is_disk_low) = match provider {
            Ok(provider) => match provider.status().await {
                Ok(status) => {
                    gauge!("sojourn_node_up").set(1.0);
                    (Some(status.capacity), status.is_disk_low)
                }
                Err(fault) => {
                    gauge!("sojourn_node_up").set(0.0);
                    return tracing::warn!(%fault, "the node of this worker does not answer");
                }
            },
            Err(_) => (None, false),
        };
        match store.record_heartbeat(*node, *orphan_timeout, capacity, is_disk_low).await {
            // Only after the heartbeat: sandboxes of a node that others consider lost must exit.
            Ok(()) => self.touch_sandboxes().await,
            Err(error) => tracing::warn!(%error, "the node's heartbeat failed"),
        }
    }

    /// Renews the orphan deadline of every running sandbox of the node.
    async fn touch_sandboxes(&self) {
        let Ok(sandbox) = &self.runtime.sandboxes.provider else { return };
        if let Err(fault) = sandbox.keep_alive().await {
            tracing::warn!(%fault, "sandboxes that are frozen would outlive this process");
        }
        let sandboxes =
            match self.runtime.sandboxes.store.sandboxes_of_node(self.runtime.sandboxes.node).await {
                Ok(sandboxes) => sandboxes,
                Err(error) => return tracing::warn!(%error, "the node's sandboxes could not be listed"),
            };
        // A frozen sandbox cannot answer and runs nothing.
        let live = sandboxes.iter().filter(|live| live.state == Liveness::Live).map(|live| live.sandbox);
        futures::stream::iter(live)
            .for_each_concurrent(SANDBOX_KEEPALIVES_MAX, async |id| {
                if let Err(fault) = sandbox.touch(id).await {
                    tracing::debug!(sandbox.id = %id, %fault, "a sandbox does not answer");
                }
            })
            .await;
    }

    async fn remove_unused(&self) {
        if let Err(error) =
            self.runtime.sandboxes.store.delete_unused_rootfs(self.runtime.sandboxes.node).await
        {
            tracing::warn!(%error, "rows of unused root file systems could not be deleted");
        }
        if let Ok(images) = &self.runtime.sandboxes.provider
            && let Err(unmade) = images.remove_unused_rootfs().await
        {
            tracing::warn!(%unmade, "unused root file systems could not be removed");
        }
        let Ok(sandbox) = &self.runtime.sandboxes.provider else { return };
        match self.remove_orphans(&**sandbox).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "sandboxes and disks without an owner were removed"),
            Err(error) => tracing::warn!(error, "orphaned sandboxes could not be removed"),
        }
    }

    /// Removes sandboxes that no row owns and disks that no session needs.
    ///
    /// The provider is listed first: a row is written before its sandbox exists, so a listed sandbox
    /// without a row afterwards has no owner.
    async fn remove_orphans(&self, sandbox: &dyn Sandbox) -> Result<usize, String> {
        let found = sandbox.list().await.map_err(|fault| fault.to_string())?;
        let rows = self
            .runtime
            .sandboxes
            .store
            .sandboxes_of_node(self.runtime.sandboxes.node)
            .await
            .map_err(|error| error.to_string())?;
        let owned: HashSet<_> = rows.iter().map(|row| row.sandbox).collect();
        let mut removed = 0;
        for id in found.iter().filter_map(|found| found.sandbox).filter(|id| !owned.contains(id)) {
            sandbox.destroy(id).await.map_err(|fault| fault.to_string())?;
            removed += 1;
        }
        let disks: Vec<_> = found.iter().map(|found| (found.org, found.session)).collect();
        let stale = self
            .runtime
            .sandboxes
            .store
            .stale_disks(self.runtime.sandboxes.node, &disks)
            .await
            .map_err(|error| error.to_string())?;
        let stale: HashSet<_> = stale.into_iter().collect();
        let busy: HashSet<_> = rows.iter().map(|row| row.session).collect();
        for (org, session) in disks {
            // The clean-up job removes the disk of a closed session with a live row.
            if !stale.contains(&session) || busy.contains(&session) {
                continue;
            }
            match sandbox.erase(org, session).await {
                Ok(()) => removed += 1,
                // A sandbox was just created there.
                Err(fault) => tracing::debug!(session.id = %session, %fault, "a disk could not be removed"),
            }
        }
        Ok(removed)
    }
}
