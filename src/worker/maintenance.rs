//! Maintenance of sandboxes beside the turns: freezing and hibernating idle ones, removing those of archived sessions.
//!
//! It has places of its own. Turns that wait for capacity would otherwise keep the sandboxes whose capacity they wait
//! for from being frozen.

use std::sync::Arc;

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::base::limit::{CLAIM_POLL, DRAIN_TIMEOUT, MAINTENANCE_JOBS_MAX};

impl Worker {
    /// Claims and runs the jobs that maintain sandboxes, whenever it is `told` and at an interval, until `stop`; then
    /// waits for those that run. Tells `ended` after each, for the turns that waited for it.
    pub(super) async fn maintain(
        self,
        stop: CancellationToken,
        draining: watch::Receiver<bool>,
        (told, ended): (Arc<Notify>, Arc<Notify>),
    ) {
        let mut jobs = JoinSet::new();
        let mut polls = interval(CLAIM_POLL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.is_cancelled() {
            let was_full = jobs.len() >= MAINTENANCE_JOBS_MAX;
            tokio::select! {
                _ = polls.tick() => {}
                () = told.notified() => {}
                Some(_) = jobs.join_next() => {
                    ended.notify_one();
                    // Another may be due already; else the next poll is soon enough.
                    if !was_full {
                        continue;
                    }
                }
                () = stop.cancelled() => break,
            }
            let free = MAINTENANCE_JOBS_MAX - jobs.len();
            if free == 0 {
                continue;
            }
            match self.queue.claim_maintenance(free).await {
                Ok(leases) => leases.into_iter().for_each(|lease| {
                    jobs.spawn(self.clone().work(lease, draining.clone()));
                }),
                Err(error) => tracing::warn!(%error, "jobs of sandboxes could not be claimed; retrying"),
            }
        }
        let drained = timeout(DRAIN_TIMEOUT, async { while jobs.join_next().await.is_some() {} });
        if drained.await.is_err() {
            // Each of their steps may be repeated: the next worker continues.
            tracing::warn!(
                jobs = jobs.len(),
                "sandboxes were not maintained in time; another worker continues"
            );
            jobs.shutdown().await;
        }
    }
}
