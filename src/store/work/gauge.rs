//! Current load of the whole deployment, counted in its tables.

use sqlx::FromRow;

use crate::store::{Result, Store};

/// Counts of all organizations at one moment.
#[derive(Clone, Copy, Debug, Default, FromRow)]
pub struct Gauges {
    /// Turns that wait for a worker or for a time.
    pub turns_queued: i64,
    /// Turns that have started and not ended.
    pub turns_running: i64,
    /// Jobs that a worker could take now.
    pub jobs_ready: i64,
    /// Age of the oldest ready job, in seconds.
    pub jobs_ready_age_seconds: f64,
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
    /// By the indexes `turn_live`, `job_recent`, `job_scheduled`, `job_lease`, `sandbox_live` and
    /// `delivery_ready`, so idle sessions cost nothing.
    pub async fn gauges(&self) -> Result<Gauges> {
        Ok(sqlx::query_as(
            "select
                (select count(*) from turn where state = 'queued') as turns_queued,
                (select count(*) from turn where state = 'running') as turns_running,
                job.*,
                (select count(*) from job where worker_id is not null) as jobs_held,
                sandbox.*,
                delivery.*,
                content.*
             from (
                 select
                     count(*) as jobs_ready,
                     coalesce(extract(epoch from now() - min(ready_at)), 0)::float8 as jobs_ready_age_seconds
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
                 ) due
                 -- A sandbox of a machine that is off waits for it, and keeps nobody waiting.
                 where kind <> 'idle'
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
}
