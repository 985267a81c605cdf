//! The move of events of archived sessions to the blob store, by one worker of the deployment.

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    base::limit::{RETENTION_INTERVAL, RETENTION_LEADER_TTL, RETENTION_ROUND},
    store::leader::Task,
};

impl Worker {
    /// Moves events whenever this process is the leader, until `stop`.
    ///
    /// Two workers may move the same events, when a late leader works beside its successor: the deletion of the rows
    /// is ordered by the lock of the session.
    pub(super) async fn move_events(self, stop: CancellationToken) {
        let Some(days) = self.move_events_after_days else { return stop.cancelled().await };
        let mut ticks = interval(RETENTION_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut position = None;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            while !stop.is_cancelled() && self.leads(Task::MoveEvents, RETENTION_LEADER_TTL).await {
                let journal = &self.runtime.sandboxes.journal;
                // Dropping it is safe at any point, and a page may take longer than a shutdown waits.
                let moving = journal.move_events(days, position, Instant::now() + RETENTION_ROUND);
                match stop.run_until_cancelled(moving).await {
                    Some(Ok(next)) => position = next,
                    Some(Err(error)) => {
                        tracing::warn!(%error, "sessions whose events should move could not be read; retrying");
                        break;
                    }
                    None => break,
                }
                if position.is_none() {
                    break;
                }
            }
        }
        self.give_up(Task::MoveEvents).await;
    }
}
