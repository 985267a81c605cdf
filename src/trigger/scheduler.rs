//! The loop that looks what is due, in every process that serves the API.
//!
//! Any number of processes look at the same rows: each takes what no other has locked,
//! and what it does commits together with the word that it is done. One that dies in
//! the middle has done nothing.

use futures::{StreamExt, stream};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::fire::{actor, count, fail, fire_due};
use crate::{
    base::limit::{
        HOUSEKEEPING_BATCH, SCHEDULE_RUN_DAYS, TRIGGER_BATCH, TRIGGER_POLL, TRIGGER_TIDY_EVERY,
        TRIGGERS_TOGETHER_MAX,
    },
    domain::{
        OrgId, ScheduleId,
        decide::{Command, Stamp},
        schedule::Cadence,
        scheduled_wake,
    },
    journal::{self, Journal},
    store::{self, Store, schedule::Schedule, scheduled_wake::Due},
};

/// Fires what is due for the whole service, beside other timekeepers.
#[derive(Clone)]
pub struct Scheduler {
    pub store: Store,
    pub journal: Journal,
    /// Whether agents may name `scripted/...`.
    pub scripted: bool,
}

impl Scheduler {
    /// Looks every second until `stop`; what was begun is finished.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = interval(TRIGGER_POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = 0u32;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.settle_runs().await;
            self.fire_schedules().await;
            self.wake_sessions().await;
            if looks.is_multiple_of(TRIGGER_TIDY_EVERY)
                && let Err(error) = self.store.forget_runs(SCHEDULE_RUN_DAYS, HOUSEKEEPING_BATCH).await
            {
                tracing::warn!(%error, "old runs of schedules could not be forgotten");
            }
            looks = looks.wrapping_add(1);
        }
    }

    async fn fire_schedules(&self) {
        let due = match self.store.due_schedules(TRIGGER_BATCH).await {
            Ok(due) => due,
            Err(error) => return tracing::warn!(%error, "due schedules could not be looked for"),
        };
        let each = stream::iter(due).for_each_concurrent(TRIGGERS_TOGETHER_MAX, async move |(org, schedule)| {
            let Err(error) = self.fire(org, schedule).await else { return };
            tracing::warn!(org.id = %org, schedule.id = %schedule, %error, "a schedule could not be fired");
            if is_passing(&error) {
                return;
            }
            // It would fail the same way every second: the slot counts as a failure.
            if let Err(error) = self.give_up(org, schedule).await {
                tracing::error!(org.id = %org, schedule.id = %schedule, %error, "a schedule is stuck");
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

    /// Passes over a slot that the service itself cannot fire.
    async fn give_up(&self, org: OrgId, schedule: ScheduleId) -> Result<(), journal::Error> {
        let mut unit = self.journal.begin(org).await?;
        let Some(mut schedule) = unit.tx().take_due_schedule(schedule).await? else { return Ok(()) };
        let now = unit.tx().now().await?;
        let cadence = Cadence::parse(&schedule.cron, &schedule.time_zone).ok();
        let stamp = self.stamp(&schedule);
        let slot = schedule.next_fire_at.unwrap_or(now);
        schedule.next_fire_at = cadence.and_then(|cadence| cadence.next_after(now));
        if !unit.tx().has_run(schedule.id, slot).await? {
            let error = ("internal".to_owned(), "the service failed to run it".to_owned());
            fail(&mut unit, &mut schedule, slot, error, &stamp).await?;
        }
        unit.tx().update_schedule(&schedule).await?;
        unit.commit().await
    }

    async fn wake_sessions(&self) {
        let due = match self.store.due_scheduled_wakes(TRIGGER_BATCH).await {
            Ok(due) => due,
            Err(error) => return tracing::warn!(%error, "due timers could not be looked for"),
        };
        let each = stream::iter(due).for_each_concurrent(TRIGGERS_TOGETHER_MAX, async move |due| {
            if let Err(error) = self.wake(&due).await {
                tracing::warn!(
                    org.id = %due.org, session.id = %due.session, %error, "a session could not be woken"
                );
            }
        });
        each.await;
    }

    /// The message and the word that it was sent commit together; the session's row is
    /// locked before the timer's, as it is where a session is closed.
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
            // Closed while the timer was being set: nobody will ever hear of it.
            Err(journal::Error::Rejected(_)) => {
                unit.tx().delete_scheduled_wakes(due.session).await?;
                unit.commit().await
            }
            // Deleted since, and its timers with it.
            Err(journal::Error::Store(store::Error::NotFound)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Looks what became of the turns that runs started.
    async fn settle_runs(&self) {
        let open = match self.store.schedules_to_settle(TRIGGER_BATCH).await {
            Ok(open) => open,
            Err(error) => return tracing::warn!(%error, "runs that are over could not be looked for"),
        };
        for (org, schedule) in open {
            if let Err(error) = self.settle(org, schedule).await {
                tracing::warn!(org.id = %org, schedule.id = %schedule, %error, "runs could not be settled");
            }
        }
    }

    async fn settle(&self, org: OrgId, schedule: ScheduleId) -> Result<(), journal::Error> {
        let mut unit = self.journal.begin(org).await?;
        let Some(mut schedule) = unit.tx().lock_schedule_to_settle(schedule).await? else { return Ok(()) };
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

/// Whether it may be otherwise in a moment.
fn is_passing(error: &journal::Error) -> bool {
    match error {
        journal::Error::Store(store::Error::Unavailable { .. } | store::Error::Busy) => true,
        journal::Error::Blob(_) => true,
        journal::Error::Store(_) | journal::Error::Rejected(_) => false,
    }
}
