//! The net under the queue: sessions that should move and that nobody would find; and
//! what is written for an organization that is gone already.
//!
//! Every wake is enqueued in the transaction of its cause, so the sweep finds nothing
//! while the service is healthy; what it finds is put right and said.

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    base::limit::{HOUSEKEEPING_BATCH, SWEEP_INTERVAL},
    store::notification::Notification,
};

impl Worker {
    /// Looks at the start and then every few seconds, until `stop`.
    pub(super) async fn sweep(self, stop: CancellationToken) {
        let mut ticks = interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.find_stuck().await;
            self.journal.expire_cached_logs();
        }
    }

    async fn find_stuck(&self) {
        match self.store.enqueue_stuck(HOUSEKEEPING_BATCH).await {
            Ok(0) => {}
            Ok(jobs) => {
                tracing::error!(jobs, "sessions had work and no job; they have one now");
                self.notifications.send(Notification::Job);
            }
            Err(error) => tracing::warn!(%error, "forgotten sessions could not be looked for"),
        }
        if let Err(error) = self.store.purge_deleted_orgs().await {
            tracing::warn!(%error, "deleted organizations could not be purged again");
        }
        match self.store.sessions_overdue().await {
            Ok(0) | Err(_) => {}
            Ok(sessions) => {
                tracing::error!(sessions, "sessions are overdue; see GET /v3/sessions?overdue=true")
            }
        }
    }
}
