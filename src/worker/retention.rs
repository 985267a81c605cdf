//! Retention: one worker of the deployment deletes what is past its time, until nothing of it is left.
//!
//! Deletions may run twice at the same time, when a late leader works beside its successor.

use metrics::counter;
use tokio::{
    join,
    sync::Semaphore,
    time::{Instant, Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    base::limit::{
        HOUSEKEEPING_BATCH, RETENTION_CONNECTIONS, RETENTION_INTERVAL, RETENTION_LEADER_TTL, RETENTION_ROUND,
        SCHEDULE_RUN_DAYS,
    },
    journal::{self, Page},
    store::{
        self,
        leader::Task,
        purge::{
            BlobRemoval::{First, Last},
            ScanPosition,
        },
    },
};

/// Positions of the scans of rows with a blob.
#[derive(Default)]
struct BlobScans {
    sessions: Option<ScanPosition>,
    late: Option<ScanPosition>,
    operations: Option<ScanPosition>,
    /// Set while there may be more.
    objects: Option<()>,
}

impl Worker {
    /// Deletes what is past its time whenever this process is the leader, until `stop`.
    pub(super) async fn delete_expired(self, stop: CancellationToken) {
        // Beside each other: a blob store that does not answer delays no row.
        join!(self.delete_rows(&stop), self.delete_with_blobs(&stop));
        self.give_up(Task::Retention).await;
    }

    async fn delete_rows(&self, stop: &CancellationToken) {
        let mut sessions = None;
        let mut rounds = Rounds::new(self, stop);
        while rounds.next().await {
            let round = async {
                if let Err(error) = self.runtime.sandboxes.store.roll_months().await {
                    tracing::warn!(%error, "could not create next month's partitions");
                }
                self.rows_of_a_round(&mut sessions).await
            };
            // Dropping it is safe at any point, and a statement may take longer than a shutdown waits.
            rounds.is_done = stop.run_until_cancelled(round).await.unwrap_or(true);
        }
    }

    async fn delete_with_blobs(&self, stop: &CancellationToken) {
        let mut scans = BlobScans::default();
        let mut rounds = Rounds::new(self, stop);
        while rounds.next().await {
            let round = self.blobs_of_a_round(&mut scans);
            // Dropping it is safe at any point, and so is a removal that happens twice.
            rounds.is_done = stop.run_until_cancelled(round).await.unwrap_or(true);
        }
    }

    /// Deletes rows. Returns whether none is left that is past its time.
    async fn rows_of_a_round(&self, sessions: &mut Option<ScanPosition>) -> bool {
        let (store, journal) = (&self.runtime.sandboxes.store, &self.runtime.sandboxes.journal);
        let until = Instant::now() + RETENTION_ROUND;
        let permits = Semaphore::new(RETENTION_CONNECTIONS);
        let of_rows = async {
            <[bool; 11]>::from(join!(
                rows(&permits, "organization", until, || store.purge_deleted_orgs()),
                rows(&permits, "response", until, || store.delete_expired_responses(HOUSEKEEPING_BATCH)),
                rows(&permits, "client_token", until, || store.delete_expired_tokens(HOUSEKEEPING_BATCH)),
                rows(&permits, "removal", until, || store.delete_old_removals(HOUSEKEEPING_BATCH)),
                rows(&permits, "schedule_run", until, || store
                    .delete_old_runs(SCHEDULE_RUN_DAYS, HOUSEKEEPING_BATCH)),
                rows(&permits, "sandbox_wait", until, || store.delete_abandoned_waits()),
                rows(&permits, "node", until, || store.delete_silent_nodes()),
                rows(&permits, "usage_shard", until, || store.fold_shards()),
                rows(&permits, "file", until, || store.delete_unused_files(HOUSEKEEPING_BATCH)),
                rows(&permits, "skill", until, || store.delete_unpublished_skills(HOUSEKEEPING_BATCH)),
                rows(&permits, "destination", until, || store.delete_old_destinations(HOUSEKEEPING_BATCH)),
            ))
        };
        let of_sessions = async {
            <[bool; 2]>::from(join!(
                rows(&permits, "session_rows", until, || store.delete_session_rows(HOUSEKEEPING_BATCH)),
                pages(&permits, "session", until, sessions, |after| journal.delete_expired_sessions(after)),
            ))
        };
        let (of_rows, of_sessions) = join!(of_rows, of_sessions);
        of_rows.into_iter().chain(of_sessions).all(|is_done| is_done)
    }

    /// Deletes blobs and their rows, a page of one kind at a time. Returns whether none is left that is past its time.
    async fn blobs_of_a_round(&self, scans: &mut BlobScans) -> bool {
        let journal = &self.runtime.sandboxes.journal;
        let until = Instant::now() + RETENTION_ROUND;
        let permits = Semaphore::new(1);
        let done: [bool; 4] = join!(
            pages(&permits, "operation", until, &mut scans.operations, |after| journal
                .delete_old_operations(after)),
            pages(&permits, "session_blobs", until, &mut scans.sessions, |after| journal
                .remove_purged_blobs(First, after)),
            pages(&permits, "late_blobs", until, &mut scans.late, |after| journal
                .remove_purged_blobs(Last, after)),
            pages(&permits, "object", until, &mut scans.objects, |_| journal.delete_unused_objects()),
        )
        .into();
        done.into_iter().all(|is_done| is_done)
    }
}

/// Rounds of deletions: the next one at once while something is left, else after `RETENTION_INTERVAL`.
struct Rounds<'a> {
    worker: &'a Worker,
    stop: &'a CancellationToken,
    ticks: Interval,
    /// Nothing is left.
    is_done: bool,
}

impl<'a> Rounds<'a> {
    fn new(worker: &'a Worker, stop: &'a CancellationToken) -> Self {
        let mut ticks = interval(RETENTION_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { worker, stop, ticks, is_done: true }
    }

    /// Waits until this process is the leader and a round is due. Returns whether it is to begin: not after `stop`.
    async fn next(&mut self) -> bool {
        loop {
            if self.is_done && self.stop.run_until_cancelled(self.ticks.tick()).await.is_none() {
                return false;
            }
            if self.stop.is_cancelled() {
                return false;
            }
            if self.worker.leads(Task::Retention, RETENTION_LEADER_TTL).await {
                return true;
            }
            self.is_done = true;
        }
    }
}

/// Deletes batches of rows. Returns whether none is left.
async fn rows<F>(permits: &Semaphore, kind: &'static str, until: Instant, delete: impl Fn() -> F) -> bool
where
    F: Future<Output = store::Result<u64>>,
{
    loop {
        let permit = permits.acquire().await;
        let deleted = delete().await;
        drop(permit);
        let deleted = match deleted {
            Ok(deleted) => deleted,
            Err(error) => {
                tracing::warn!(%error, kind, "rows past their time could not be deleted; retrying");
                return true;
            }
        };
        counter!("sojourn_retention_deleted_total", "kind" => kind).increment(deleted);
        if deleted < HOUSEKEEPING_BATCH.cast_unsigned() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
}

/// Deletes pages of a scan from its position. Returns whether the scan has reached its end, or goes on later.
async fn pages<P: Copy, F>(
    permits: &Semaphore,
    kind: &'static str,
    until: Instant,
    position: &mut Option<P>,
    delete: impl Fn(Option<P>) -> F,
) -> bool
where
    F: Future<Output = Result<Page<P>, journal::Error>>,
{
    loop {
        let permit = permits.acquire().await;
        let page = delete(*position).await;
        drop(permit);
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, kind, "what is past its time could not be read; retrying");
                return true;
            }
        };
        counter!("sojourn_retention_deleted_total", "kind" => kind).increment(page.deleted as u64);
        *position = page.next;
        if position.is_none() || page.is_unanswered {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
}
