//! Schedules of agents.
//!
//! The database's clock decides whether a slot is due. A schedule fires with its row locked. The
//! run's row, unique by slot, commits with the turn that it starts.

use serde_json::Value;
use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, from_word, json, word},
    parameter::named,
};
use crate::{
    base::{Id, Timestamp},
    domain::{
        AgentId, OrgId, ScheduleId, SessionId,
        schedule::{Overlap, SessionTemplate},
    },
};

/// A schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub id: ScheduleId,
    pub agent: AgentId,
    pub cron: String,
    pub time_zone: String,
    /// A string or an object.
    pub input: Value,
    pub overlap: Overlap,
    pub enabled: bool,
    /// The session that it wakes. `None` if each slot creates a session from the session template.
    pub session: Option<SessionId>,
    pub session_template: Option<SessionTemplate>,
    pub next_fire_at: Option<Timestamp>,
    pub consecutive_failures: i32,
    /// Reason why the service disabled it.
    pub paused_reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    schedule_id: Uuid,
    agent_id: Uuid,
    cron: String,
    time_zone: String,
    input: String,
    overlap: String,
    enabled: bool,
    session_id: Option<Uuid>,
    session_template: Option<String>,
    next_fire_at: Option<Timestamp>,
    consecutive_failures: i32,
    paused_reason: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl Row {
    fn schedule(self) -> Result<Schedule> {
        Ok(Schedule {
            id: Id::from_uuid(self.schedule_id),
            agent: Id::from_uuid(self.agent_id),
            cron: self.cron,
            time_zone: self.time_zone,
            input: from_json(&self.input)?,
            overlap: from_word(&self.overlap)?,
            enabled: self.enabled,
            session: self.session_id.map(Id::from_uuid),
            session_template: self.session_template.as_deref().map(from_json).transpose()?,
            next_fire_at: self.next_fire_at,
            consecutive_failures: self.consecutive_failures,
            paused_reason: self.paused_reason,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

macro_rules! schedules {
    ($rest:literal) => {
        concat!(
            "select schedule_id, agent_id, cron, time_zone, input::text, overlap, enabled, session_id, session_template::text,
                    next_fire_at, consecutive_failures, paused_reason, created_at, updated_at
             from schedule
             where org_id = $1 ",
            $rest
        )
    };
}

impl Tx {
    /// Returns the database's time, which is constant during a transaction.
    pub async fn now(&mut self) -> Result<Timestamp> {
        Ok(sqlx::query_scalar("select now()").fetch_one(self.connection()).await?)
    }

    /// Stores a schedule.
    pub async fn insert_schedule(&mut self, schedule: &Schedule) -> Result<()> {
        named!(
            query(
                "insert into schedule (org_id, schedule_id, agent_id, session_id, created_at, updated_at, cron,
                                       time_zone, input, overlap, enabled, session_template, next_fire_at)
                 values ($org_id, $schedule_id, $agent_id, $session_id, $created_at, $created_at, $cron, $time_zone,
                         $input::json, $overlap, $enabled, $session_template::json, $next_fire_at)"
            ),
            {
                org_id: self.org.uuid(),
                schedule_id: schedule.id.uuid(),
                agent_id: schedule.agent.uuid(),
                session_id: schedule.session.map(Id::uuid),
                created_at: schedule.created_at,
                cron: &schedule.cron,
                time_zone: &schedule.time_zone,
                input: json(&schedule.input),
                overlap: word(&schedule.overlap),
                enabled: schedule.enabled,
                session_template: schedule.session_template.as_ref().map(json),
                next_fire_at: schedule.next_fire_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Counts the schedules of an agent, by the index `schedule_of_agent`.
    pub async fn count_schedules(&mut self, agent: AgentId) -> Result<i64> {
        let org = self.org.uuid();
        let count = sqlx::query_scalar("select count(*) from schedule where org_id = $1 and agent_id = $2")
            .bind(org)
            .bind(agent.uuid())
            .fetch_one(self.connection())
            .await?;
        Ok(count)
    }

    /// Returns a page of an agent's schedules, newest first.
    ///
    /// By the index `schedule_of_agent`.
    pub async fn schedules(
        &mut self,
        agent: AgentId,
        below: Option<ScheduleId>,
        limit: i64,
    ) -> Result<Vec<Schedule>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(schedules!(
            "and agent_id = $2 and ($3::uuid is null or schedule_id < $3) order by schedule_id desc limit $4"
        ))
        .bind(org)
        .bind(agent.uuid())
        .bind(below.map(Id::uuid))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(Row::schedule).collect()
    }

    /// Reads one schedule of an agent.
    pub async fn schedule(&mut self, agent: AgentId, schedule: ScheduleId) -> Result<Schedule> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(schedules!("and agent_id = $2 and schedule_id = $3"))
            .bind(org)
            .bind(agent.uuid())
            .bind(schedule.uuid())
            .fetch_one(self.connection())
            .await?;
        row.schedule()
    }

    /// Reads one schedule of an agent and locks it until the transaction ends.
    pub async fn lock_schedule(&mut self, agent: AgentId, schedule: ScheduleId) -> Result<Schedule> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(schedules!("and agent_id = $2 and schedule_id = $3 for update"))
            .bind(org)
            .bind(agent.uuid())
            .bind(schedule.uuid())
            .fetch_one(self.connection())
            .await?;
        row.schedule()
    }

    /// Locks a schedule whose slot is due; `None` when another process holds it or has fired it.
    pub async fn take_due_schedule(&mut self, schedule: ScheduleId) -> Result<Option<Schedule>> {
        let org = self.org.uuid();
        let row: Option<Row> = sqlx::query_as(schedules!(
            "and schedule_id = $2 and next_fire_at <= now() for update skip locked"
        ))
        .bind(org)
        .bind(schedule.uuid())
        .fetch_optional(self.connection())
        .await?;
        row.map(Row::schedule).transpose()
    }

    /// Locks a schedule by its id alone; `None` when it was deleted.
    pub async fn lock_schedule_by_id(&mut self, schedule: ScheduleId) -> Result<Option<Schedule>> {
        let org = self.org.uuid();
        let row: Option<Row> = sqlx::query_as(schedules!("and schedule_id = $2 for update"))
            .bind(org)
            .bind(schedule.uuid())
            .fetch_optional(self.connection())
            .await?;
        row.map(Row::schedule).transpose()
    }

    /// Updates the mutable columns of a locked schedule.
    pub async fn update_schedule(&mut self, schedule: &Schedule) -> Result<()> {
        named!(
            query(
                "update schedule
                 set cron = $cron, time_zone = $time_zone, input = $input::json, overlap = $overlap,
                     enabled = $enabled, session_template = $session_template::json, next_fire_at = $next_fire_at,
                     consecutive_failures = $consecutive_failures, paused_reason = $paused_reason,
                     updated_at = $updated_at
                 where org_id = $org_id and schedule_id = $schedule_id"
            ),
            {
                org_id: self.org.uuid(),
                schedule_id: schedule.id.uuid(),
                cron: &schedule.cron,
                time_zone: &schedule.time_zone,
                input: json(&schedule.input),
                overlap: word(&schedule.overlap),
                enabled: schedule.enabled,
                session_template: schedule.session_template.as_ref().map(json),
                next_fire_at: schedule.next_fire_at,
                consecutive_failures: schedule.consecutive_failures,
                paused_reason: &schedule.paused_reason,
                updated_at: schedule.updated_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes a schedule with its runs; the turns that they started continue.
    pub async fn delete_schedule(&mut self, agent: AgentId, schedule: ScheduleId) -> Result<()> {
        let org = self.org.uuid();
        let done =
            sqlx::query("delete from schedule where org_id = $1 and agent_id = $2 and schedule_id = $3")
                .bind(org)
                .bind(agent.uuid())
                .bind(schedule.uuid())
                .execute(self.connection())
                .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Returns due schedules of active organizations, the longest waiting first.
    ///
    /// By the index `schedule_due`.
    pub async fn due_schedules(&self, limit: i64) -> Result<Vec<(OrgId, ScheduleId)>> {
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "select s.org_id, s.schedule_id
             from schedule s
             join org t using (org_id)
             where s.next_fire_at <= now() and t.suspended_at is null and t.deleted_at is null
             order by s.next_fire_at
             limit $1",
        )
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(pairs(rows))
    }
}

pub(in crate::store) fn pairs(rows: Vec<(Uuid, Uuid)>) -> Vec<(OrgId, ScheduleId)> {
    rows.into_iter().map(|(org, schedule)| (Id::from_uuid(org), Id::from_uuid(schedule))).collect()
}
