//! What a node cleans up: sandboxes and disks that nobody owns, answers that are old.

use std::collections::HashSet;

use futures::StreamExt;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    base::limit::{
        CHECKPOINTS_BY_HAND_KEPT, CHECKPOINTS_KEPT, HOUSEKEEPING_BATCH, NODE_BEAT, REAP_EVERY_BEATS,
        SANDBOX_TOUCHES,
    },
    domain::{OrgId, SessionId},
    queue::Lease,
    sandbox::{Fault, Sandbox, checkpoint},
    store::{self, checkpoint::Checkpoint, sandbox::Liveness},
};

impl Worker {
    /// Says that the node is alive and, now and then, removes what no row owns.
    pub(super) async fn reap(self, stop: CancellationToken) {
        let mut beats = interval(NODE_BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0u32;
        while stop.run_until_cancelled(beats.tick()).await.is_some() {
            match self.store.beat(self.node, self.sandboxes_end).await {
                // Only then: sandboxes of a node that the others take for lost must end.
                Ok(()) => self.touch_sandboxes().await,
                Err(error) => tracing::warn!(%error, "the node could not say that it is alive"),
            }
            if count.is_multiple_of(REAP_EVERY_BEATS) {
                self.tidy_up().await;
            }
            count = count.wrapping_add(1);
        }
    }

    /// Tells every sandbox of the node that somebody looks after it.
    async fn touch_sandboxes(&self) {
        let Ok(sandbox) = &self.sandbox else { return };
        let sandboxes = match self.store.sandboxes_of_node(self.node).await {
            Ok(sandboxes) => sandboxes,
            Err(error) => return tracing::warn!(%error, "the node's sandboxes could not be listed"),
        };
        // One that stands still hears nothing, and does nothing that could matter.
        let live = sandboxes.iter().filter(|live| live.state == Liveness::Live).map(|live| live.sandbox);
        futures::stream::iter(live)
            .for_each_concurrent(SANDBOX_TOUCHES, async |id| {
                if let Err(fault) = sandbox.touch(id).await {
                    tracing::debug!(sandbox.id = %id, %fault, "a sandbox does not answer");
                }
            })
            .await;
    }

    async fn tidy_up(&self) {
        if let Err(error) = self.store.forget_answers(HOUSEKEEPING_BATCH).await {
            tracing::warn!(%error, "old idempotency keys could not be forgotten");
        }
        if let Err(error) = self.journal.forget_operations().await {
            tracing::warn!(%error, "what callers asked of sandboxes could not be forgotten");
        }
        if let Err(error) = self.store.fold_shards().await {
            tracing::warn!(%error, "what was used could not be added up");
        }
        if let Err(error) = self.store.roll_months().await {
            tracing::warn!(%error, "the months to come could not be made");
        }
        match self.journal.delete_expired().await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "sessions were deleted that nobody keeps any longer"),
            Err(error) => tracing::warn!(%error, "sessions that nobody keeps could not be deleted"),
        }
        if let Err(error) = self.journal.remove_leftovers().await {
            tracing::warn!(%error, "blobs of deleted sessions could not be removed; trying again");
        }
        if let Err(error) = self.store.forget_rootfs(self.node).await {
            tracing::warn!(%error, "root file systems that nobody wants could not be forgotten");
        }
        if let Some(images) = &self.images
            && let Err(unmade) = images.tidy().await
        {
            tracing::warn!(%unmade, "root file systems that nobody uses could not be removed");
        }
        let Ok(sandbox) = &self.sandbox else { return };
        match self.remove_orphans(&**sandbox).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "sandboxes and disks without an owner were removed"),
            Err(error) => tracing::warn!(error, "the node could not be tidied up"),
        }
    }

    /// Removes sandboxes that no row owns and disks that no session needs.
    ///
    /// The provider is asked first: a row is written before its sandbox, so a sandbox that
    /// is on the list and has no row afterwards is nobody's.
    async fn remove_orphans(&self, sandbox: &dyn Sandbox) -> Result<usize, String> {
        let found = sandbox.list().await.map_err(|fault| fault.to_string())?;
        let rows = self.store.sandboxes_of_node(self.node).await.map_err(|error| error.to_string())?;
        let owned: HashSet<_> = rows.iter().map(|row| row.sandbox).collect();
        let mut removed = 0;
        for id in found.iter().filter_map(|found| found.sandbox).filter(|id| !owned.contains(id)) {
            sandbox.destroy(id).await.map_err(|fault| fault.to_string())?;
            removed += 1;
        }
        let disks: Vec<_> = found.iter().map(|found| (found.org, found.session)).collect();
        let stale = self.store.stale_disks(self.node, &disks).await.map_err(|error| error.to_string())?;
        let stale: HashSet<_> = stale.into_iter().collect();
        let busy: HashSet<_> = rows.iter().map(|row| row.session).collect();
        for (org, session) in disks {
            // A closed session with a live row is its clean-up's to do.
            if !stale.contains(&session) || busy.contains(&session) {
                continue;
            }
            match sandbox.erase(org, session).await {
                Ok(()) => removed += 1,
                // A sandbox has just been made there.
                Err(fault) => tracing::debug!(session.id = %session, %fault, "a disk stays"),
            }
        }
        Ok(removed)
    }

    /// Ends the sandbox of a closed session and removes its disk.
    pub(super) async fn clean_up(&self, lease: Lease) -> Result<&'static str, store::Error> {
        let claimed = *lease.claimed();
        let removed = match &self.sandbox {
            Ok(sandbox) => self.remove_sandbox(&**sandbox, &claimed).await?,
            Err(_) => Ok(()),
        };
        let removed = match removed {
            Ok(()) => self.remove_checkpoints(claimed.org, claimed.session).await,
            Err(fault) => Err(fault.to_string()),
        };
        match removed {
            Ok(()) => {
                lease.finish().await?;
                Ok("cleaned up")
            }
            Err(reason) => {
                tracing::warn!(session.id = %claimed.session, reason, "a sandbox could not be removed; trying again");
                lease.release(NODE_BEAT).await?;
                Ok("not cleaned up yet")
            }
        }
    }

    async fn remove_sandbox(
        &self,
        sandbox: &dyn Sandbox,
        claimed: &store::job::Claimed,
    ) -> Result<Result<(), Fault>, store::Error> {
        if let Some(live) = self.store.live_sandbox(claimed.org, claimed.session).await? {
            if let Err(fault) = sandbox.destroy(live.sandbox).await {
                return Ok(Err(fault));
            }
            self.store.end_sandbox(claimed.org, claimed.session, live.sandbox).await?;
        }
        Ok(sandbox.erase(claimed.org, claimed.session).await)
    }

    /// Removes a session's checkpoints but the newest, and as many as are kept of those that
    /// callers made: each blob before its row.
    pub(super) async fn remove_old_checkpoints(&self, org: OrgId, session: SessionId) -> Result<(), String> {
        let all = self.store.checkpoints(org, session).await.map_err(|error| error.to_string())?;
        let (newest, others) = all.split_at(CHECKPOINTS_KEPT.min(all.len()));
        let mut kept: Vec<_> = all.iter().filter(|one| one.is_kept).take(CHECKPOINTS_BY_HAND_KEPT).collect();
        kept.extend(newest);
        let is_old = |one: &&Checkpoint| !kept.iter().any(|kept| kept.checkpoint == one.checkpoint);
        for checkpoint in others.iter().filter(is_old) {
            // Equal files have one blob.
            if !kept.iter().any(|kept| kept.digest == checkpoint.digest) {
                let key = checkpoint::key(&blobs_of(org, session), &checkpoint.digest);
                self.blobs.delete(&key).await.map_err(|error| error.to_string())?;
            }
            let forgotten = self.store.forget_checkpoint(org, session, checkpoint.checkpoint).await;
            forgotten.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Removes the checkpoints of a closed session: the blobs before the rows, those too that
    /// were stored by a worker that died before it had written their rows.
    async fn remove_checkpoints(&self, org: OrgId, session: SessionId) -> Result<(), String> {
        let place = checkpoint::place(&blobs_of(org, session));
        self.blobs.remove_all(&place).await.map_err(|error| error.to_string())?;
        let all = self.store.checkpoints(org, session).await.map_err(|error| error.to_string())?;
        for checkpoint in all {
            let forgotten = self.store.forget_checkpoint(org, session, checkpoint.checkpoint).await;
            forgotten.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Where the blobs of a session are.
pub(super) fn blobs_of(org: OrgId, session: SessionId) -> String {
    format!("{}/{}", org.uuid(), session.uuid())
}
