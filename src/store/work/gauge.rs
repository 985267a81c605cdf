//! Current load of the whole deployment, counted in its tables.

use sqlx::FromRow;

use crate::{
    base::limit::{
        BLOB_PURGE_LAST_AFTER, BLOB_PURGE_REPEAT_AFTER, DESTINATION_DAYS, FILE_UNUSED_AFTER,
        IDEMPOTENCY_HOURS, NODE_DAYS, OPERATION_HOURS, ORG_PURGE_REPEAT_FOR, REMOVAL_DAYS, SCHEDULE_RUN_DAYS,
    },
    store::{Result, Store},
};

/// Counts of all organizations at one moment.
#[derive(Clone, Copy, Debug, Default, FromRow)]
pub struct Gauges {
    /// Turns that wait for a worker or for a time.
    pub turns_queued: i64,
    /// Turns that have started and not ended.
    pub turns_running: i64,
    /// Turns that wait for actions of callers or for child sessions.
    pub turns_waiting: i64,
    /// Actions that no caller has answered yet.
    pub actions_open: i64,
    /// Jobs that a worker could take now.
    pub jobs_ready: i64,
    /// Age of the oldest ready job, in seconds.
    pub jobs_ready_age_seconds: f64,
    /// Jobs that freeze or remove a sandbox and that a worker could take now.
    pub maintenance_ready: i64,
    /// Age of the oldest of them, in seconds.
    pub maintenance_ready_age_seconds: f64,
    /// Jobs that a worker holds.
    pub jobs_held: i64,
    /// Sandboxes that can run commands.
    pub sandboxes_live: i64,
    /// Frozen sandboxes.
    pub sandboxes_frozen: i64,
    /// Sandboxes that are being removed.
    pub sandboxes_ending: i64,
    /// Deliveries that will be attempted, now or later.
    pub deliveries_pending: i64,
    /// Age of the oldest due delivery, in seconds.
    pub deliveries_due_age_seconds: f64,
    /// Large bodies of events that wait to be moved to the blob store.
    pub event_content_pending: i64,
    /// Age of the oldest of them, in seconds.
    pub event_content_age_seconds: f64,
}

impl Store {
    /// Counts active rows.
    ///
    /// By the indexes `turn_live`, `turn_waiting`, `action_open`, `job_recent`, `job_scheduled`, `job_lease`, `sandbox_live` and
    /// `delivery_ready`, so idle sessions cost nothing.
    pub async fn gauges(&self) -> Result<Gauges> {
        Ok(sqlx::query_as(
            "select
                (select count(*) from turn where state = 'queued') as turns_queued,
                (select count(*) from turn where state = 'running') as turns_running,
                (select count(*) from turn where state = 'waiting') as turns_waiting,
                (select count(*) from action where outcome is null) as actions_open,
                job.*,
                (select count(*) from job where worker_id is not null) as jobs_held,
                sandbox.*,
                delivery.*,
                content.*
             from (
                 select
                     count(*) filter (where is_turn) as jobs_ready,
                     coalesce(extract(epoch from now() - min(ready_at) filter (where is_turn)), 0)::float8
                         as jobs_ready_age_seconds,
                     count(*) filter (where not is_turn) as maintenance_ready,
                     coalesce(extract(epoch from now() - min(ready_at) filter (where not is_turn)), 0)::float8
                         as maintenance_ready_age_seconds
                 from (
                     select ready_at, kind in ('turn', 'operation') as is_turn
                     from (
                         select ready_at, kind
                         from job
                         where worker_id is null and not is_scheduled and ready_at <= now()
                         union all
                         select ready_at, kind
                         from job
                         where worker_id is null and is_scheduled and ready_at <= now()
                         union all
                         select ready_at, kind
                         from job
                         where worker_id is not null and ready_at <= now()
                     ) job
                 ) due
             ) job, (
                 select
                     count(*) filter (where state = 'live') as sandboxes_live,
                     count(*) filter (where state = 'frozen') as sandboxes_frozen,
                     count(*) filter (where state = 'ending') as sandboxes_ending
                 from sandbox
                 where state <> 'ended'
             ) sandbox, (
                 select
                     count(*) as deliveries_pending,
                     greatest(extract(epoch from now() - min(ready_at)), 0)::float8 as deliveries_due_age_seconds
                 from delivery
                 where ready_at is not null
             ) delivery, (
                 select
                     count(*) as event_content_pending,
                     coalesce(extract(epoch from now() - min(created_at)), 0)::float8 as event_content_age_seconds
                 from event_content
             ) content",
        )
        .fetch_one(&self.system)
        .await?)
    }

    /// Returns for each kind of rows that retention deletes how long the oldest has been past its time, in
    /// seconds. Each by an index of its time.
    pub async fn retention_ages(&self) -> Result<Vec<(String, f64)>> {
        Ok(sqlx::query_as(RETENTION_AGES)
            .bind(IDEMPOTENCY_HOURS)
            .bind(REMOVAL_DAYS)
            .bind(SCHEDULE_RUN_DAYS)
            .bind(OPERATION_HOURS)
            .bind(BLOB_PURGE_REPEAT_AFTER.as_secs_f64())
            .bind(BLOB_PURGE_LAST_AFTER.as_secs_f64())
            .bind(ORG_PURGE_REPEAT_FOR.as_secs_f64())
            .bind(FILE_UNUSED_AFTER.as_secs_f64())
            .bind(NODE_DAYS)
            .bind(DESTINATION_DAYS)
            .fetch_all(&self.system)
            .await?)
    }
}

/// How long the oldest row of each kind has been past its time.
const RETENTION_AGES: &str = "
select kind, coalesce(greatest(extract(epoch from now() - due), 0), 0)::float8
from (
    select 'response' as kind, min(created_at) + make_interval(hours => $1) as due
    from idempotency
    where scope = 'header'
    union all
    select 'client_token', min(expires_at) from client_token
    union all
    select 'removal', min(removed_at) + make_interval(days => $2) from removal
    union all
    select 'schedule_run', min(created_at) + make_interval(days => $3)
    from schedule_run
    where state <> 'started'
    union all
    select 'operation', min(completed_at) + make_interval(hours => $4)
    from operation
    where completed_at is not null
    union all
    select 'session_blobs', min(created_at) + $5 * interval '1 second'
    from purged_session_blobs
    where removed_at is null
    union all
    select 'late_blobs', min(created_at) + $6 * interval '1 second' from purged_session_blobs
    union all
    select 'session_rows', min(created_at) from deleted_log
    union all
    select 'destination', min(deleted_at) + make_interval(days => $10) from destination where deleted_at is not null
    union all
    select 'organization', min(deleted_at) + $7 * interval '1 second'
    from org
    where deleted_at is not null and purged_at is null
    union all
    select 'file', min(created_at) + $8 * interval '1 second' from file where not kept and not used
    union all
    select 'skill', min(created_at) + $8 * interval '1 second' from skill where version is null
    union all
    select 'object', min(kept_until) from object where not used
    union all
    select 'usage_shard', date_trunc('day', min(hour), 'UTC') + interval '2 days'
    from usage_hour
    where shard <> 0
    union all
    select 'sandbox_wait', min(w.seen_at) + interval '1 minute'
    from sandbox_wait w
    where not exists (
        select from job j
        where j.org_id = w.org_id and j.session_id = w.session_id and j.kind in ('turn', 'operation')
    )
    union all
    select 'node', min(n.seen_at) + make_interval(days => $9)
    from node n
    where n.seen_at < now() - make_interval(days => $9)
      and not exists (select from sandbox s where s.node_id = n.node_id and s.state <> 'ended')
      and not exists (select from job j where j.node_id = n.node_id)
    union all
    select 'month', min(to_date(right(c.relname, 6), 'YYYYMM')) + interval '1 month' + interval '30 days'
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('delivery'::regclass, 'delivery_attempt'::regclass)
      and c.relname ~ '_[0-9]{6}$'
    union all
    select 'session', min(s.stopped_at + make_interval(days => t.retention_days))
    from org t
    cross join lateral (
        select stopped_at
        from session s
        where s.org_id = t.org_id
          and s.status = 'archived'
          and not exists (
              select from session c
              where c.org_id = s.org_id
                and c.parent_session_id = s.session_id
                and c.status <> 'archived'
          )
        order by stopped_at
        limit 1
    ) s
    where t.retention_days is not null and t.deleted_at is null
) oldest";
