//! Slots that hold leases and run turns, and what a node does beside them.
//!
//! One loop claims as many jobs as there are free slots; each runs in a task of its
//! own under its lease. Asked to stop, the worker claims nothing more, lets every
//! turn come to its next checkpoint, and leaves running commands to whoever comes.

mod archive;
mod control;
mod egress_attachment;
mod end_early;
mod file;
mod leased_sandbox;
mod lifecycle_hook;
mod operate;
mod output;
mod ports;
mod preflight;
mod reap;
mod rest;
mod rootfs;
mod sandbox_session;
mod sandbox_spec;
mod scheduled_wake;
mod slot;
mod source;
mod spans;
mod spend;
mod start_session;
mod sweep;

use std::{sync::Arc, time::Duration};

pub use egress_attachment::Network;

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use rest::Rest;

use crate::{
    base::limit::{CLAIM_JOBS_MAX, CLAIM_POLL, DRAIN_TIMEOUT},
    blob::Blobs,
    journal::Journal,
    model::Providers,
    net::LocalDirectories,
    queue::{Lease, Queue},
    sandbox::{Sandbox, local::image::Images},
    store::{Store, notification::Notifications},
    tool::Catalogue,
};

/// What a worker works with. Cheap to clone.
#[derive(Clone)]
pub struct Worker {
    pub store: Store,
    pub journal: Journal,
    pub queue: Queue,
    pub notifications: Notifications,
    pub providers: Arc<Providers>,
    /// Why there are no sandboxes here, when there are none.
    pub sandbox: Result<Arc<dyn Sandbox>, String>,
    /// What sandboxes can be made on, where they can be.
    pub images: Option<Images>,
    /// The image of an environment that names none.
    pub default_image: String,
    pub catalogue: Catalogue,
    /// How sandboxes reach the world.
    pub network: Network,
    /// Directories of which repositories may be cloned.
    pub local_sources: LocalDirectories,
    /// Where checkpoints are kept.
    pub blobs: Blobs,
    /// When sandboxes rest.
    pub rest: Rest,
    /// The machine whose sandboxes this worker reaches.
    pub node: Uuid,
    /// How long its sandboxes may run on when it is silent.
    pub sandboxes_end: Duration,
    /// Turns that run at the same time.
    pub slots: usize,
}

impl Worker {
    /// Works until `stop`, then drains. Returns when no lease is held any more.
    pub async fn run(self, stop: CancellationToken) {
        let kept = CancellationToken::new();
        let (drain, draining) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (queue, kept) = (self.queue.clone(), kept.clone());
            async move { queue.keep(kept).await }
        });
        tasks.spawn(self.clone().reap(stop.clone()));
        tasks.spawn(self.clone().sweep(stop.clone()));
        tasks.spawn(self.clone().make_rootfs(stop.clone()));
        let mut slots = JoinSet::new();
        while !stop.is_cancelled() {
            self.fill(&mut slots, &draining).await;
            tokio::select! {
                () = self.queue.ready(), if slots.len() < self.slots => {}
                () = sleep(CLAIM_POLL) => {}
                Some(_) = slots.join_next() => {}
                () = stop.cancelled() => {}
            }
        }
        drain.send_replace(true);
        let drained = timeout(DRAIN_TIMEOUT, async { while slots.join_next().await.is_some() {} });
        if drained.await.is_err() {
            // A model call outlasts the drain: dropping it is safe, the log says where
            // to go on.
            tracing::warn!(slots = slots.len(), "turns did not reach a checkpoint in time; they are cut off");
            slots.shutdown().await;
        }
        match self.queue.give_back().await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(jobs, "jobs were given back"),
            Err(error) => tracing::warn!(%error, "jobs could not be given back; their leases run out"),
        }
        kept.cancel();
        while tasks.join_next().await.is_some() {}
    }

    /// Claims as many jobs as there are free slots.
    async fn fill(&self, slots: &mut JoinSet<()>, draining: &watch::Receiver<bool>) {
        while slots.try_join_next().is_some() {}
        loop {
            let free = self.slots.saturating_sub(slots.len());
            let wanted = i64::try_from(free).unwrap_or(CLAIM_JOBS_MAX).min(CLAIM_JOBS_MAX);
            if wanted == 0 {
                return;
            }
            let leases = match self.queue.claim(wanted).await {
                Ok(leases) => leases,
                Err(error) => {
                    tracing::warn!(%error, "no jobs could be claimed; trying again");
                    return;
                }
            };
            let is_last = (leases.len() as i64) < wanted;
            for lease in leases {
                slots.spawn(self.clone().work(lease, draining.clone()));
            }
            if is_last {
                return;
            }
        }
    }

    async fn work(self, lease: Lease, draining: watch::Receiver<bool>) {
        let claimed = *lease.claimed();
        let started = std::time::Instant::now();
        let outcome = slot::run(&self, lease, draining).await;
        let duration_ms = started.elapsed().as_millis() as u64;
        match outcome {
            Ok(what) => tracing::debug!(
                org.id = %claimed.org, session.id = %claimed.session, duration_ms, what, "a job was worked on"
            ),
            Err(error) => tracing::warn!(
                org.id = %claimed.org, session.id = %claimed.session, duration_ms, %error,
                "a job was given up; it is taken up again when its lease ends"
            ),
        }
    }
}
