//! Retention: one worker of the deployment deletes what is past its time, until nothing of it is left.
//!
//! Deletions may run twice at the same time, when a late leader works beside its successor.

use metrics::counter;
use tokio::{
    join,
    sync::Semaphore,
    time::{Instant, MissedTickBehavior, interval},
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

/// Positions of the scans.
#[derive(Default)]
struct Scans {
    sessions: Option<ScanPosition>,
    blobs: Option<ScanPosition>,
    late_blobs: Option<ScanPosition>,
    operations: Option<ScanPosition>,
}

impl Worker {
    /// Deletes what is past its time whenever this process is the leader, until `stop`.
    pub(super) async fn delete_expired(self, stop: CancellationToken) {
        let mut ticks = interval(RETENTION_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut scans = Scans::default();
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            while !stop.is_cancelled() && self.leads(Task::Retention, RETENTION_LEADER_TTL).await {
                if let Err(error) = self.runtime.sandboxes.store.roll_months().await {
                    tracing::warn!(%error, "could not create next month's partitions");
                }
                if self.delete_for_a_round(&mut scans).await {
                    break;
                }
            }
        }
        self.give_up(Task::Retention).await;
    }

    /// Returns whether nothing is left that is past its time.
    async fn delete_for_a_round(&self, scans: &mut Scans) -> bool {
        let (store, journal) = (&self.runtime.sandboxes.store, &self.runtime.sandboxes.journal);
        let until = Instant::now() + RETENTION_ROUND;
        let permits = Semaphore::new(RETENTION_CONNECTIONS);
        let uploads = async {
            join!(
                rows(&permits, "file", until, || store.delete_unused_files(HOUSEKEEPING_BATCH)),
                rows(&permits, "skill", until, || store.delete_unpublished_skills(HOUSEKEEPING_BATCH)),
            )
        };
        let others = async {
            join!(
                rows(&permits, "organization", until, || store.purge_deleted_orgs()),
                rows(&permits, "response", until, || store.delete_expired_responses(HOUSEKEEPING_BATCH)),
                rows(&permits, "client_token", until, || store.delete_expired_tokens(HOUSEKEEPING_BATCH)),
                rows(&permits, "removal", until, || store.delete_old_removals(HOUSEKEEPING_BATCH)),
                rows(&permits, "schedule_run", until, || store
                    .delete_old_runs(SCHEDULE_RUN_DAYS, HOUSEKEEPING_BATCH)),
                rows(&permits, "sandbox_wait", until, || store.delete_abandoned_waits()),
                rows(&permits, "node", until, || store.delete_silent_nodes()),
                rows(&permits, "usage_shard", until, || store.fold_shards()),
                pages(&permits, "operation", until, &mut scans.operations, |after| journal
                    .delete_old_operations(after)),
                pages(&permits, "session", until, &mut scans.sessions, |after| journal
                    .delete_expired_sessions(after)),
                pages(&permits, "session_blobs", until, &mut scans.blobs, |after| journal
                    .remove_purged_blobs(First, after)),
                pages(&permits, "late_blobs", until, &mut scans.late_blobs, |after| journal
                    .remove_purged_blobs(Last, after)),
            )
        };
        let ((files, skills), others) = join!(uploads, others);
        files && skills && <[bool; 12]>::from(others).into_iter().all(|is_done| is_done)
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

/// Deletes pages of a scan from its position. Returns whether the scan has reached its end.
async fn pages<F>(
    permits: &Semaphore,
    kind: &'static str,
    until: Instant,
    position: &mut Option<ScanPosition>,
    delete: impl Fn(Option<ScanPosition>) -> F,
) -> bool
where
    F: Future<Output = Result<Page, journal::Error>>,
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
        if position.is_none() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
}
