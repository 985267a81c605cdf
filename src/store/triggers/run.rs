//! Runs of schedules: one for each slot, committed with the turn that it started.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    column::{from_word, storable, word},
    parameter::named,
    schedule::{Schedule, pairs},
};
use crate::{
    base::{Id, Timestamp},
    domain::{OrgId, RunId, ScheduleId, SessionId, TurnId, schedule::RunState},
};

/// One run of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub slot: Timestamp,
    /// A caller requested it.
    pub manual: bool,
    pub state: RunState,
    pub session: Option<SessionId>,
    pub turn: Option<TurnId>,
    /// Code and message of a failed run.
    pub error: Option<(String, String)>,
}

/// A run whose turn has ended, with the turn's result.
#[derive(Clone, Debug, FromRow)]
pub struct Ended {
    run_id: Uuid,
    manual: bool,
    failed: bool,
    error_code: Option<String>,
    error_message: Option<String>,
}

#[derive(FromRow)]
struct RunRow {
    run_id: Uuid,
    slot: Timestamp,
    manual: bool,
    state: String,
    session_id: Option<Uuid>,
    turn_id: Option<Uuid>,
    error_code: Option<String>,
    error_message: Option<String>,
}

impl RunRow {
    fn run(self) -> Result<Run> {
        Ok(Run {
            id: Id::from_uuid(self.run_id),
            slot: self.slot,
            manual: self.manual,
            state: from_word(&self.state)?,
            session: self.session_id.map(Id::from_uuid),
            turn: self.turn_id.map(Id::from_uuid),
            error: self.error_code.zip(self.error_message),
        })
    }
}

impl Ended {
    /// Returns whether the run failed, or `None` when it does not count for the schedule.
    ///
    /// A run that a caller requested does not count; that caller checks it.
    pub fn counts_as_failed(&self) -> Option<bool> {
        (!self.manual).then_some(self.failed)
    }
}

impl Tx {
    /// Returns whether a slot was fired before, by the index `schedule_run_slot`.
    pub async fn has_run(&mut self, schedule: ScheduleId, slot: Timestamp) -> Result<bool> {
        let org = self.org.uuid();
        let found = sqlx::query_scalar(
            "select exists (
                 select from schedule_run where org_id = $1 and schedule_id = $2 and slot = $3 and not manual
             )",
        )
        .bind(org)
        .bind(schedule.uuid())
        .bind(slot)
        .fetch_one(self.connection())
        .await?;
        Ok(found)
    }

    /// Returns whether a turn that the schedule must not overlap is open.
    ///
    /// That is the turn of an earlier run, or a turn of the session that the schedule wakes. By the
    /// index `schedule_run_open`.
    pub async fn is_schedule_busy(&mut self, schedule: &Schedule) -> Result<bool> {
        let org = self.org.uuid();
        let busy = sqlx::query_scalar(
            "select exists (
                 select from schedule_run r
                 join turn t on t.org_id = r.org_id and t.session_id = r.session_id and t.turn_id = r.turn_id
                 where r.org_id = $1 and r.schedule_id = $2 and r.state = 'started' and t.completed_at is null
             ) or exists (
                 select from session
                 where org_id = $1 and session_id = $3 and status in ('queued', 'running')
             )",
        )
        .bind(org)
        .bind(schedule.id.uuid())
        .bind(schedule.session.map(Id::uuid))
        .fetch_one(self.connection())
        .await?;
        Ok(busy)
    }

    /// Inserts a run.
    ///
    /// # Errors
    /// `Conflict("schedule_run_slot")` when the slot was fired before.
    pub async fn insert_run(&mut self, schedule: ScheduleId, run: &Run) -> Result<()> {
        let (code, message) = run.error.clone().unzip();
        named!(
            query(
                "insert into schedule_run (org_id, run_id, schedule_id, slot, manual, state, session_id, turn_id,
                                           error_code, error_message)
                 values ($org_id, $run_id, $schedule_id, $slot, $manual, $state, $session_id, $turn_id, $code,
                         $message)"
            ),
            {
                org_id: self.org.uuid(),
                run_id: run.id.uuid(),
                schedule_id: schedule.uuid(),
                slot: run.slot,
                manual: run.manual,
                state: word(&run.state),
                session_id: run.session.map(Id::uuid),
                turn_id: run.turn.map(Id::uuid),
                code: code,
                message: message.as_deref().map(storable),
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns a page of a schedule's runs, newest first.
    ///
    /// By the index `schedule_run_of_schedule`.
    pub async fn runs(&mut self, schedule: ScheduleId, below: Option<RunId>, limit: i64) -> Result<Vec<Run>> {
        let org = self.org.uuid();
        let rows: Vec<RunRow> = sqlx::query_as(
            "select run_id, slot, manual, state, session_id, turn_id, error_code, error_message
             from schedule_run
             where org_id = $1 and schedule_id = $2 and ($3::uuid is null or run_id < $3)
             order by run_id desc
             limit $4",
        )
        .bind(org)
        .bind(schedule.uuid())
        .bind(below.map(Id::uuid))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(RunRow::run).collect()
    }

    /// Records the results of a locked schedule's runs whose turn has ended.
    ///
    /// Returns them in the order in which the turns ended. A run whose session was deleted has
    /// ended too. A turn that a caller canceled before it started is no failure; one that a check
    /// canceled has an error code.
    pub async fn settle_runs(&mut self, schedule: ScheduleId) -> Result<Vec<Ended>> {
        let org = self.org.uuid();
        let ended: Vec<Ended> = sqlx::query_as(
            "select r.run_id, r.manual, t.error_code, t.error_message,
                    coalesce(t.state = 'error'
                             or (t.started_at is null
                                 and (t.yield_reason <> 'canceled' or t.error_code is not null)), false) as failed
             from schedule_run r
             left join turn t
                 on t.org_id = r.org_id and t.session_id = r.session_id and t.turn_id = r.turn_id
             where r.org_id = $1
               and r.schedule_id = $2
               and r.state = 'started'
               and (t.turn_id is null or t.completed_at is not null)
             order by t.completed_at, r.run_id",
        )
        .bind(org)
        .bind(schedule.uuid())
        .fetch_all(self.connection())
        .await?;
        for run in &ended {
            sqlx::query(
                "update schedule_run
                 set state = $3, error_code = $4, error_message = $5
                 where org_id = $1 and run_id = $2",
            )
            .bind(org)
            .bind(run.run_id)
            .bind(word(&if run.failed { RunState::Failed } else { RunState::Completed }))
            .bind(run.error_code.as_deref().or(run.failed.then_some("refused")))
            .bind(
                run.error_message
                    .as_deref()
                    .or(run.failed.then_some("its turn was refused before it started")),
            )
            .execute(self.connection())
            .await?;
        }
        Ok(ended)
    }
}

impl Store {
    /// Returns schedules with runs whose turn has ended. By the index `schedule_run_open`.
    pub async fn schedules_to_settle(&self, limit: i64) -> Result<Vec<(OrgId, ScheduleId)>> {
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "select distinct r.org_id, r.schedule_id
             from schedule_run r
             left join turn t
                 on t.org_id = r.org_id and t.session_id = r.session_id and t.turn_id = r.turn_id
             where r.state = 'started' and (t.turn_id is null or t.completed_at is not null)
             limit $1",
        )
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(pairs(rows))
    }

    /// Deletes one batch of ended runs older than `days`. By the index `schedule_run_age`.
    pub async fn delete_old_runs(&self, days: i32, batch: i64) -> Result<u64> {
        let done = sqlx::query(
            "delete from schedule_run
             where (org_id, run_id) in (
                 select org_id, run_id
                 from schedule_run
                 where created_at < now() - make_interval(days => $1) and state <> 'started'
                 order by created_at
                 limit $2
                 for update skip locked
             )",
        )
        .bind(days)
        .bind(batch)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }
}
