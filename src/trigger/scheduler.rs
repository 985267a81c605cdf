//! Scheduler loop, which runs in every process that serves the API.
//!
//! All processes poll the same rows. Each takes the rows that no other has locked, and commits its
//! actions together with the record that they are done. A process that crashes in between has done
//! nothing.

use futures::{StreamExt, stream};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::fire::{actor, count, fail, fire_due};
use crate::{
    base::limit::{TRIGGER_BATCH, TRIGGER_POLL, TRIGGERS_CONCURRENT_MAX},
    domain::{
        OrgId, ScheduleId,
        decide::{Command, Stamp},
        schedule::CronSchedule,
        scheduled_wake,
    },
    journal::{self, Journal},
    store::{self, Store, schedule::Schedule, scheduled_wake::Due},
};

/// Fires due schedules and wakes for the whole service, concurrently with other schedulers.
#[derive(Clone)]
pub(crate) struct Scheduler {
    pub store: Store,
    pub journal: Journal,
    /// Whether agents may use `scripted/...` models.
    pub scripted: bool,
}

impl Scheduler {
    /// Polls every second until `stop`; an action in progress is completed.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut ticks = interval(TRIGGER_POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.settle_runs().await;
            self.fire_schedules().await;
            self.wake_sessions().await;
        }
    }

    async fn fire_schedules(&self) {
        let due = match self.store.due_schedules(TRIGGER_BATCH).await {
            Ok(due) => due,
            Err(error) => return tracing::warn!(%error, "could not query due schedules"),
        };
        let each = stream::iter(due).for_each_concurrent(TRIGGERS_CONCURRENT_MAX, async move |(org, schedule)| {
            let Err(error) = self.fire(org, schedule).await else { return };
            tracing::warn!(org.id = %org, schedule.id = %schedule, %error, "could not fire a schedule");
            if is_transient(&error) {
                return;
            }
            // It would fail the same way every second, so the slot counts as a failed run.
            if let Err(error) = self.skip_slot(org, schedule).await {
                tracing::error!(org.id = %org, schedule.id = %schedule, %error, "could not skip a schedule's slot");
            }
        });
        each.await;
    }

    async fn fire(&self, org: OrgId, schedule: ScheduleId) -> Result<(), journal::Error> {
        let mut unit = self.journal.begin(org).await?;
        let Some(schedule) = unit.tx().take_due_schedule(schedule).await? else { return Ok(()) };
        let now = unit.tx().now().await?;
        let stamp = self.stamp(&schedule);
        fire_due(&mut unit, schedule, now, self.scripted, &stamp).await?;
        unit.commit().await
    }

    /// Skips a slot that the service itself cannot fire.
    async fn skip_slot(&self, org: OrgId, schedule: ScheduleId) -> Result<(), journal::Error> {
        let mut unit = self.journal.begin(org).await?;
        let Some(mut schedule) = unit.tx().take_due_schedule(schedule).await? else { return Ok(()) };
        let now = unit.tx().now().await?;
        let cadence = CronSchedule::parse(&schedule.cron, &schedule.time_zone).ok();
        let stamp = self.stamp(&schedule);
        let slot = schedule.next_fire_at.unwrap_or(now);
        schedule.next_fire_at = cadence.and_then(|cadence| cadence.next_after(now));
        if !unit.tx().has_run(schedule.id, slot).await? {
            let error = ("internal".to_owned(), "the service failed to start the run".to_owned());
            fail(&mut unit, &mut schedule, slot, error, &stamp).await?;
        }
        unit.tx().update_schedule(&schedule).await?;
        unit.commit().await
    }

    async fn wake_sessions(&self) {
        let due = match self.store.due_scheduled_wakes(TRIGGER_BATCH).await {
            Ok(due) => due,
            Err(error) => return tracing::warn!(%error, "could not query due wakes"),
        };
        let each = stream::iter(due).for_each_concurrent(TRIGGERS_CONCURRENT_MAX, async move |due| {
            if let Err(error) = self.wake(&due).await {
                tracing::warn!(
                    org.id = %due.org, session.id = %due.session, %error, "could not wake a session"
                );
            }
        });
        each.await;
    }

    /// Commits the message together with the removal of the wake. The session's row is locked
    /// before the wake's, in the same order as when a session is archived.
    async fn wake(&self, due: &Due) -> Result<(), journal::Error> {
        let mut unit = self.journal.begin(due.org).await?;
        let stamp =
            Stamp { actor: scheduled_wake::actor(&due.call_id), origin: self.journal.origin().clone() };
        let steer = Command::Steer(scheduled_wake::message(&due.call_id, &due.note));
        match unit.execute(due.session, steer, &stamp).await {
            Ok(_) => {
                if unit.tx().take_scheduled_wake(due.session, &due.call_id).await? {
                    unit.commit().await?;
                }
                Ok(())
            }
            // The session was archived while the wake was being scheduled; delete its wakes.
            Err(journal::Error::Rejected(_)) => {
                unit.tx().delete_scheduled_wakes(due.session).await?;
                unit.commit().await
            }
            // The session was deleted, together with its wakes.
            Err(journal::Error::Store(store::Error::NotFound)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Records the outcome of turns that runs started.
    async fn settle_runs(&self) {
        let open = match self.store.schedules_to_settle(TRIGGER_BATCH).await {
            Ok(open) => open,
            Err(error) => return tracing::warn!(%error, "could not query completed runs"),
        };
        for (org, schedule) in open {
            if let Err(error) = self.settle(org, schedule).await {
                tracing::warn!(org.id = %org, schedule.id = %schedule, %error, "could not record completed runs");
            }
        }
    }

    async fn settle(&self, org: OrgId, schedule: ScheduleId) -> Result<(), journal::Error> {
        let mut unit = self.journal.begin(org).await?;
        let Some(mut schedule) = unit.tx().lock_schedule_by_id(schedule).await? else { return Ok(()) };
        let stamp = self.stamp(&schedule);
        for ended in unit.tx().settle_runs(schedule.id).await? {
            if let Some(failed) = ended.counts_as_failed() {
                count(&mut unit, &mut schedule, failed, &stamp).await?;
            }
        }
        unit.tx().update_schedule(&schedule).await?;
        unit.commit().await
    }

    fn stamp(&self, schedule: &Schedule) -> Stamp {
        Stamp { actor: actor(schedule), origin: self.journal.origin().clone() }
    }
}

/// Returns whether the error may be temporary.
fn is_transient(error: &journal::Error) -> bool {
    match error {
        journal::Error::Store(store::Error::Unavailable { .. } | store::Error::Busy) => true,
        journal::Error::Blob(_) => true,
        journal::Error::Store(_) | journal::Error::Rejected(_) => false,
    }
}
