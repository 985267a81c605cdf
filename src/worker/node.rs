//! Upkeep of the nodes of a worker: heartbeat, reaper of sandboxes, disks and root file systems without an owner.

use std::{collections::HashSet, time::Duration};

use futures::StreamExt;
use metrics::gauge;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Worker;
use crate::{
    base::{
        limit::{NODE_HEARTBEAT_INTERVAL, NODE_REAP_INTERVAL, SANDBOX_KEEPALIVES_MAX, SANDBOX_ORPHAN_MARGIN},
        loops::Loops,
    },
    lifecycle::{Sandboxes, WorkerNode},
    sandbox::Sandbox,
    store::sandbox::Liveness,
};

impl Worker {
    /// Attends each node from the time it joins until `stop`.
    pub(super) async fn attend_nodes(self, stop: CancellationToken) {
        let nodes = &self.runtime.sandboxes.nodes;
        let (mut joined, mut attended, mut tasks) = (nodes.joined(), HashSet::new(), Loops::default());
        loop {
            let _ = joined.borrow_and_update();
            for node in nodes.all() {
                if attended.insert(node.id) {
                    tasks.spawn("node upkeep", self.clone().keep_up(node.clone(), stop.clone()));
                    // Apart from the heartbeat: a removal of many files takes minutes.
                    tasks.spawn("node reaper", self.clone().reap(node.clone(), stop.clone()));
                    let builds = self.runtime.sandboxes.clone();
                    tasks.spawn("root file system", builds.build_root_file_systems(node, stop.clone()));
                }
            }
            tokio::select! {
                Ok(()) = joined.changed() => {}
                () = stop.cancelled() => break,
                ended = tasks.ended() => {
                    if !stop.is_cancelled() {
                        // The process stops when this loop ends.
                        return tracing::error!(%ended, "the upkeep of a node ended");
                    }
                    break;
                }
            }
        }
        tasks.joined().await;
    }

    /// Sends a node's heartbeat.
    async fn keep_up(self, node: WorkerNode, stop: CancellationToken) {
        let mut beats = interval(NODE_HEARTBEAT_INTERVAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(beats.tick()).await.is_some() {
            self.beat(&node).await;
        }
    }

    /// Removes what no owner of a node's resources needs any more, again and again.
    async fn reap(self, node: WorkerNode, stop: CancellationToken) {
        let mut rounds = interval(NODE_REAP_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(rounds.tick()).await.is_some() {
            self.remove_unused(&node).await;
        }
    }

    /// Records that a node is there, and lets its sandboxes live on. No heartbeat is recorded for a node that does not answer, and
    /// this worker claims no jobs of it.
    async fn beat(&self, node: &WorkerNode) {
        let Sandboxes { store, nodes, orphan_timeout, .. } = &self.runtime.sandboxes;
        let status = match &node.provider {
            Ok(provider) => {
                let status = provider.status().await;
                gauge!("sojourn_node_up", "node" => node.id.to_string())
                    .set(f64::from(u8::from(status.is_ok())));
                let has_changed = nodes.reachable().set(node.id, status.is_ok());
                match status {
                    Ok(status) => {
                        if has_changed {
                            tracing::info!(node.id = %node.id, "a node answers again");
                        }
                        Some(status)
                    }
                    Err(fault) => {
                        return tracing::warn!(node.id = %node.id, %fault, "a node of this worker does not answer");
                    }
                }
            }
            Err(_) => None,
        };
        let capacity = status.map(|status| status.capacity);
        let is_disk_low = status.is_some_and(|status| status.is_disk_low);
        // Its sandboxes run as long as the node says, whatever the setting of this worker.
        let orphan_seconds = status.and_then(|status| status.orphan_seconds).unwrap_or(0);
        let orphan_timeout =
            (*orphan_timeout).max(Duration::from_secs(orphan_seconds) + SANDBOX_ORPHAN_MARGIN);
        match store.record_heartbeat(node.id, orphan_timeout, capacity, is_disk_low).await {
            // Only after the heartbeat: sandboxes of a node that others consider lost must exit.
            Ok(()) => self.touch_sandboxes(node).await,
            Err(error) => tracing::warn!(%error, "the node's heartbeat failed"),
        }
    }

    /// Renews the orphan deadline of every running sandbox of a node.
    async fn touch_sandboxes(&self, node: &WorkerNode) {
        let Ok(sandbox) = &node.provider else { return };
        if let Err(fault) = sandbox.keep_alive().await {
            tracing::warn!(%fault, "sandboxes that are frozen would outlive this process");
        }
        let sandboxes = match self.runtime.sandboxes.store.sandboxes_of_node(node.id).await {
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

    async fn remove_unused(&self, node: &WorkerNode) {
        let sandboxes = &self.runtime.sandboxes;
        // Before: the row of one that is in use stays, as its size counts.
        if let Ok(images) = &node.provider {
            sandboxes.record_stored_rootfs(node.id, &**images).await;
        }
        if let Err(error) = sandboxes.store.delete_unused_rootfs(node.id).await {
            tracing::warn!(%error, "rows of unused root file systems could not be deleted");
        }
        let Ok(images) = &node.provider else { return };
        if let Err(unmade) = images.remove_unused_rootfs(&[]).await {
            tracing::warn!(%unmade, "unused root file systems could not be removed");
        }
        match self.remove_orphans(node.id, &**images).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "sandboxes and disks without an owner were removed"),
            Err(error) => tracing::warn!(error, "orphaned sandboxes could not be removed"),
        }
    }

    /// Removes sandboxes of a node that no row owns and disks that no session needs.
    ///
    /// The provider is listed first: a row is written before its sandbox exists, so a listed sandbox
    /// without a row afterwards has no owner.
    async fn remove_orphans(&self, node: Uuid, sandbox: &dyn Sandbox) -> Result<usize, String> {
        let store = &self.runtime.sandboxes.store;
        let found = sandbox.list().await.map_err(|fault| fault.to_string())?;
        let rows = store.sandboxes_of_node(node).await.map_err(|error| error.to_string())?;
        let owned: HashSet<_> = rows.iter().map(|row| row.sandbox).collect();
        let mut removed = 0;
        for id in found.iter().filter_map(|found| found.sandbox).filter(|id| !owned.contains(id)) {
            sandbox.destroy(id).await.map_err(|fault| fault.to_string())?;
            removed += 1;
        }
        let disks: Vec<_> = found.iter().map(|found| (found.org, found.session)).collect();
        let stale = store.stale_disks(node, &disks).await.map_err(|error| error.to_string())?;
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
