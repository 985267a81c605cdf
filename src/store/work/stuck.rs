//! Detection and repair of sessions that should progress and do not.
//!
//! Invariant `Alive`: whatever crashes, a session that is not idle is held under a live lease or
//! has a job that is due soon. A session that violates it is called overdue.

use std::collections::HashMap;

use uuid::Uuid;

use crate::store::{Result, Store, Tx};
use crate::{
    base::{Id, Timestamp, limit::OVERDUE_AFTER},
    domain::{Session, SessionId, Status},
};

/// Whether a row of `session` is overdue, with the seconds in the named parameter.
///
/// Its work has no job that is held, due soon, or waiting in the queue for its first worker.
macro_rules! overdue {
    ($seconds:literal) => {
        concat!(
            "((session.status in ('queued', 'running') or session.running_turn_id is not null)
              and session.updated_at < now() - ",
            $seconds,
            " * interval '1 second'
              and not exists (
                  select from job j
                  where j.org_id = session.org_id
                    and j.session_id = session.session_id
                    and j.kind = 'turn'
                    and (j.ready_at > now() - ",
            $seconds,
            " * interval '1 second' or (j.worker_id is null and session.status = 'queued'))
              ))"
        )
    };
}
pub(in crate::store) use overdue;

/// $1 maximum number of each kind. Nothing runs for a deleted organization, whose rows are deleted soon.
const STUCK: &str = "
with deleted as materialized (
    select org_id from org where deleted_at is not null and purged_at is null
), lost (org_id, session_id, kind, ready_at, node_id) as (
    (
        select distinct t.org_id, t.session_id, 'turn', now(), b.node_id
        from (
            select org_id, session_id from turn where state in ('queued', 'running')
            union all
            select org_id, session_id from turn where state = 'waiting'
        ) t
        join session s using (org_id, session_id)
        left join sandbox b
            on b.org_id = t.org_id and b.session_id = t.session_id and b.state <> 'ended'
        where s.status <> 'archived'
          and t.org_id not in (select org_id from deleted)
          and not exists (
              select from job j
              where j.org_id = t.org_id and j.session_id = t.session_id and j.kind = 'turn'
          )
        limit $1
    )
    union all
    (
        select b.org_id, b.session_id, 'cleanup', now(), b.node_id
        from sandbox b
        join session s using (org_id, session_id)
        where b.state <> 'ended'
          and s.status = 'archived'
          and b.org_id not in (select org_id from deleted)
          and not exists (
              select from job j
              where j.org_id = b.org_id and j.session_id = b.session_id and j.kind = 'cleanup'
          )
        limit $1
    )
    union all
    (
        select b.org_id, b.session_id, 'idle', now(), b.node_id
        from sandbox b
        join session s using (org_id, session_id)
        where b.state <> 'ended'
          and s.status <> 'archived'
          and b.org_id not in (select org_id from deleted)
          and not exists (
              select from job j
              where j.org_id = b.org_id and j.session_id = b.session_id and j.kind = 'idle'
          )
        limit $1
    )
    union all
    (
        select distinct o.org_id, o.session_id, 'operation', now(), b.node_id
        from operation o
        join session s using (org_id, session_id)
        left join sandbox b
            on b.org_id = o.org_id and b.session_id = o.session_id and b.state <> 'ended'
        where o.completed_at is null
          and s.status <> 'archived'
          and o.org_id not in (select org_id from deleted)
          and not exists (
              select from job j
              where j.org_id = o.org_id and j.session_id = o.session_id and j.kind = 'operation'
          )
        limit $1
    )
)
insert into job (org_id, session_id, kind, ready_at, node_id)
select f.org_id, f.session_id, f.kind, f.ready_at, f.node_id
from lost f
join session s using (org_id, session_id)
-- Whoever holds the row may be deleting it, and the next look comes soon.
for key share of s skip locked
on conflict do nothing";

impl Store {
    /// Inserts the missing job of every session with work; returns their number.
    ///
    /// The work is an open turn, found by the indexes `turn_live` and `turn_waiting`; a sandbox that outlived its
    /// session or has no `idle` job, by `sandbox_live`; or an open operation, by `operation_open`.
    /// A job with nothing to do has no effect.
    pub async fn enqueue_stuck(&self, jobs_max: i64) -> Result<u64> {
        let done = sqlx::query(STUCK).bind(jobs_max).execute(&self.system).await?;
        Ok(done.rows_affected())
    }

    /// Counts the overdue sessions of all organizations; 0 when healthy. By the indexes `turn_live` and
    /// `turn_waiting`.
    pub async fn sessions_overdue(&self) -> Result<i64> {
        let row: (i64,) = sqlx::query_as(concat!(
            "select count(*)
             from session
             where (org_id, session_id) in (
                 select org_id, session_id from turn where state in ('queued', 'running')
                 union all
                 select org_id, session_id from turn where state = 'waiting'
             )
             -- A started turn of a suspended organization waits until it is resumed.
             and org_id not in (select org_id from org where suspended_at is not null)
             and ",
            overdue!("$1")
        ))
        .bind(seconds())
        .fetch_one(&self.system)
        .await?;
        Ok(row.0)
    }
}

impl Tx {
    /// Returns the resume times of running turns that wait for a retry, without a worker.
    pub async fn waits(&mut self, sessions: &[Session]) -> Result<HashMap<SessionId, Timestamp>> {
        let waits = |session: &&Session| {
            session.status == Status::Running && session.hold.is_none() && !session.is_waiting()
        };
        let running = sessions.iter().filter(waits);
        let running: Vec<_> = running.map(|session| session.id.uuid()).collect();
        if running.is_empty() {
            return Ok(HashMap::new());
        }
        let org = self.org.uuid();
        let rows: Vec<(Uuid, Timestamp)> = sqlx::query_as(
            "select session_id, ready_at
             from job
             where org_id = $1
               and session_id = any($2)
               and kind = 'turn'
               and worker_id is null
               and ready_at > now()",
        )
        .bind(org)
        .bind(running)
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(|(session, at)| (Id::from_uuid(session), at)).collect())
    }
}

/// Time after which a session is overdue, in seconds.
pub(in crate::store) fn seconds() -> f64 {
    OVERDUE_AFTER.as_secs_f64()
}
