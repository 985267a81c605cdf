//! The worker loop: claims jobs into slots, renews leases, and runs node upkeep, the sweeper and retention.
//!
//! One loop claims as many jobs as there are free slots; each runs in a task of its own under its
//! lease. A job that ends makes its slot free, and the loop claims again: what waited for that job is found
//! without a notification. Sandboxes are maintained beside it (`maintenance`). On shutdown the worker claims nothing
//! more, lets every turn reach its next checkpoint, and leaves running commands to the next worker. If one of its loops
//! ends, the process stops: a worker that no longer renews leases or sends heartbeats does harm.

mod events;
mod jobs;
mod maintenance;
mod node;
mod retention;
mod slot;
mod sweep;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    base::{
        limit::{CLAIM_JOBS_MAX, CLAIM_POLL, DRAIN_TIMEOUT, RESERVE_CLAIM_INTERVAL, RESERVED_SLOTS_PART},
        loops::{LoopEnded, Loops},
    },
    queue::{Lease, Queue},
    store::leader::Task,
    turn::Runtime,
};

/// A worker process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Worker {
    pub queue: Queue,
    pub runtime: Runtime,
    /// Turns that run concurrently, without those that wait for capacity for a sandbox.
    pub slots: usize,
    /// Days after its archiving at which the events of a session move to the blob store; `None` if they stay.
    pub move_events_after_days: Option<i32>,
}

impl Worker {
    /// Runs jobs until `stop`, then drains. Returns when no lease is held.
    ///
    /// # Errors
    /// If one of its loops ended before. Then it cancels `stop` itself.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), LoopEnded> {
        let renewals_stop = CancellationToken::new();
        let (drain, draining) = watch::channel(false);
        let mut loops = Loops::default();
        loops.spawn("lease renewal", {
            let (queue, renewals_stop) = (self.queue.clone(), renewals_stop.clone());
            async move { queue.keep(renewals_stop).await }
        });
        loops.spawn("nodes", self.clone().attend_nodes(stop.clone()));
        loops.spawn("event content", self.clone().move_contents(stop.clone()));
        loops.spawn("sweeper", self.clone().sweep(stop.clone()));
        loops.spawn("retention", self.clone().delete_expired(stop.clone()));
        loops.spawn("event move", self.clone().move_events(stop.clone()));
        let (claimable, maintainable) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let mut maintenance = Loops::default();
        maintenance.spawn("maintenance", {
            let ended = Arc::clone(&claimable);
            self.clone().maintain(stop.clone(), draining.clone(), (Arc::clone(&maintainable), ended))
        });
        let mut outcome = Ok(());
        let mut slots = JoinSet::new();
        let mut polls = interval(CLAIM_POLL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_told = false;
        // Time of the last claim for the reserve.
        let mut reserved_at = Instant::now();
        while !stop.is_cancelled() {
            let claimed = self.fill(&mut slots, &draining).await;
            if slots.len() >= self.slots {
                reserved_at = Instant::now();
            }
            if std::mem::take(&mut is_told) && claimed == 0 {
                // The job may be one of a sandbox.
                maintainable.notify_one();
            }
            tokio::select! {
                () = self.told(slots.len(), reserved_at), if slots.len() < self.places() => is_told = true,
                _ = polls.tick() => self.ready_due_jobs().await,
                Some(_) = slots.join_next() => {}
                // A turn that waited for the job that was done there.
                () = claimable.notified() => {
                    if slots.len() >= self.slots {
                        self.queue.pass_on();
                    }
                }
                () = stop.cancelled() => {}
                ended = first_ended(&mut loops, &mut maintenance) => {
                    if !stop.is_cancelled() {
                        outcome = Err(ended);
                        stop.cancel();
                    }
                }
            }
        }
        // Other processes send no more jobs here, and those on their way are passed on.
        self.queue.set_free_slots(0);
        drain.send_replace(true);
        let drained = timeout(DRAIN_TIMEOUT, async { while slots.join_next().await.is_some() {} });
        if drained.await.is_err() {
            // A model call outlasts the drain: dropping it is safe, the next worker continues from the log.
            tracing::warn!(slots = slots.len(), "turns did not reach a checkpoint in time and were aborted");
            slots.shutdown().await;
        }
        maintenance.joined().await;
        match self.queue.release_all().await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(jobs, "jobs released"),
            Err(error) => tracing::warn!(%error, "jobs could not be released; their leases expire"),
        }
        renewals_stop.cancel();
        loops.joined().await;
        outcome
    }

    /// Returns whether this process is the leader of a task, for the next `ttl`.
    async fn leads(&self, task: Task, ttl: Duration) -> bool {
        self.runtime.sandboxes.store.lead(task, self.queue.worker(), ttl).await.unwrap_or_else(|error| {
            tracing::warn!(%error, ?task, "the leader of a task is not known");
            false
        })
    }

    async fn give_up(&self, task: Task) {
        if let Err(error) = self.runtime.sandboxes.store.give_up(task, self.queue.worker()).await {
            tracing::warn!(%error, ?task, "another process leads only after a while");
        }
    }

    async fn ready_due_jobs(&self) {
        if let Err(error) = self.queue.ready_due_jobs().await {
            tracing::warn!(%error, "jobs whose time has come could not be made ready; retrying");
        }
    }

    /// Claims as many jobs as there are free slots. Returns their number.
    async fn fill(&self, slots: &mut JoinSet<()>, draining: &watch::Receiver<bool>) -> usize {
        while slots.try_join_next().is_some() {}
        let mut jobs = 0;
        loop {
            let free = self.slots.saturating_sub(slots.len());
            self.queue.set_free_slots(free);
            let wanted = i64::try_from(free).unwrap_or(CLAIM_JOBS_MAX).min(CLAIM_JOBS_MAX);
            if wanted == 0 {
                return jobs + self.fill_reserve(slots, draining).await;
            }
            let claimed = match self.queue.claim(wanted).await {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(%error, "jobs could not be claimed; retrying");
                    return jobs;
                }
            };
            jobs += claimed.leases.len();
            for lease in claimed.leases {
                slots.spawn(self.clone().work(lease, draining.clone()));
            }
            self.queue.set_free_slots(self.slots.saturating_sub(slots.len()));
            if !claimed.has_more {
                return jobs;
            }
            if slots.len() >= self.slots {
                self.queue.pass_on();
                return jobs + self.fill_reserve(slots, draining).await;
            }
        }
    }

    /// Slots in addition to those of all, for organizations that hold few.
    fn reserve(&self) -> usize {
        (self.slots / RESERVED_SLOTS_PART).max(1)
    }

    /// All slots, with the reserve.
    fn places(&self) -> usize {
        self.slots + self.reserve()
    }

    /// Waits until a job may be ready. While only the reserve has places, at most one claim for it is made in each
    /// `RESERVE_CLAIM_INTERVAL`: most jobs are then of the organization that has all slots.
    async fn told(&self, held: usize, reserved_at: Instant) {
        if held >= self.slots {
            sleep_until(reserved_at + RESERVE_CLAIM_INTERVAL).await;
        }
        self.queue.ready().await;
    }

    /// Claims jobs for the reserve: they do not wait until the long turns of others end. Organizations that hold no slot
    /// here come first; one half of the reserve is only for them, the other also for those that hold fewer slots than the
    /// reserve has. Returns their number.
    async fn fill_reserve(&self, slots: &mut JoinSet<()>, draining: &watch::Receiver<bool>) -> usize {
        let reserve = self.reserve();
        let mut jobs = 0;
        for (held_max, kept) in [(1, 0), (reserve, reserve.div_ceil(2))] {
            loop {
                let free = self.places().saturating_sub(slots.len() + kept);
                if free == 0 {
                    break;
                }
                let wanted = i64::try_from(free).unwrap_or(CLAIM_JOBS_MAX).min(CLAIM_JOBS_MAX);
                let claimed = match self.queue.claim_for_others(held_max, wanted).await {
                    Ok(claimed) => claimed.leases,
                    Err(error) => {
                        tracing::warn!(%error, "jobs could not be claimed; retrying");
                        return jobs;
                    }
                };
                if claimed.is_empty() {
                    break;
                }
                jobs += claimed.len();
                for lease in claimed {
                    slots.spawn(self.clone().work(lease, draining.clone()));
                }
            }
        }
        jobs
    }

    async fn work(self, lease: Lease, draining: watch::Receiver<bool>) {
        let claimed = *lease.claimed();
        let started = std::time::Instant::now();
        let outcome = self.run_job(lease, draining).await;
        let duration_ms = started.elapsed().as_millis() as u64;
        match outcome {
            Ok(what) => tracing::debug!(
                org.id = %claimed.org, session.id = %claimed.session, duration_ms, what, "job ended"
            ),
            Err(error) => tracing::warn!(
                org.id = %claimed.org, session.id = %claimed.session, duration_ms, %error,
                "job failed; it is claimed again when its lease expires"
            ),
        }
    }
}

/// Waits until a loop of one or the other ends.
async fn first_ended(one: &mut Loops, other: &mut Loops) -> LoopEnded {
    tokio::select! {
        ended = one.ended() => ended,
        ended = other.ended() => ended,
    }
}
