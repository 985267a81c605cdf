//! Sweeper: finds sessions that have work but no job, purges deleted organizations again, and moves large
//! bodies of events to the blob store.
//!
//! Every job is enqueued in the transaction of its cause, so the sweep finds nothing while the
//! service is healthy; each finding is repaired and logged as an error.

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    base::limit::{
        EVENT_CONTENT_POLL, EVENT_CONTENTS_CLAIMED, HOUSEKEEPING_BATCH, SWEEP_INTERVAL, SWEEP_LEADER_TTL,
    },
    store::{leader::Task, notification::Notification},
};

impl Worker {
    /// Sweeps at an interval whenever this process is the leader, until `stop`.
    pub(super) async fn sweep(self, stop: CancellationToken) {
        let mut ticks = interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if self.leads(Task::Sweep, SWEEP_LEADER_TTL).await {
                self.find_stuck().await;
            }
            self.runtime.sandboxes.journal.expire_cached_folds();
        }
        self.give_up(Task::Sweep).await;
    }

    /// Moves large bodies of events from the database to the blob store, until `stop`.
    pub(super) async fn move_contents(self, stop: CancellationToken) {
        let mut ticks = interval(EVENT_CONTENT_POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            loop {
                match self.runtime.sandboxes.journal.move_contents().await {
                    Ok(moved) if moved as i64 == EVENT_CONTENTS_CLAIMED && !stop.is_cancelled() => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::warn!(%error, "bodies of events could not be moved to the blob store; retrying");
                        break;
                    }
                }
            }
        }
    }

    async fn find_stuck(&self) {
        match self.runtime.sandboxes.store.enqueue_stuck(HOUSEKEEPING_BATCH).await {
            Ok(0) => {}
            Ok(jobs) => {
                tracing::error!(jobs, "sessions with work had no job; jobs were enqueued");
                self.runtime.sandboxes.notifications.send(Notification::Jobs);
            }
            Err(error) => tracing::warn!(%error, "stuck sessions could not be searched for"),
        }
        match self.runtime.sandboxes.store.sessions_overdue().await {
            Ok(0) | Err(_) => {}
            Ok(sessions) => {
                tracing::error!(sessions, "sessions are overdue; see GET /v3/sessions?overdue=true")
            }
        }
    }
}
