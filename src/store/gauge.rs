//! What the whole deployment is doing right now, counted in its tables.

use sqlx::FromRow;

use super::{Result, Store};

/// One moment of a deployment, of all organizations.
#[derive(Clone, Copy, Debug, Default, FromRow)]
pub struct Gauges {
    /// Turns that wait for a worker, or for their time.
    pub turns_queued: i64,
    /// Turns that have started and not ended.
    pub turns_running: i64,
    /// Jobs that a worker could take now.
    pub jobs_ready: i64,
    /// How long the oldest of them has been waiting, in seconds.
    pub jobs_ready_age_seconds: f64,
    /// Jobs that a worker holds.
    pub jobs_held: i64,
    /// Sandboxes that commands can run in.
    pub sandboxes_live: i64,
    /// Sandboxes that stand still.
    pub sandboxes_frozen: i64,
    /// Sandboxes that are being removed.
    pub sandboxes_ending: i64,
    /// Deliveries that will be tried, now or later.
    pub deliveries_pending: i64,
    /// How long the oldest delivery that is due has been waiting, in seconds.
    pub deliveries_due_age_seconds: f64,
}

impl Store {
    /// Counts what moves: all rows of `job`, and by the indexes `turn_live`, `job_worker`, `sandbox_live`
    /// and `delivery_ready`, so that idle sessions cost nothing.
    pub async fn gauges(&self) -> Result<Gauges> {
        Ok(sqlx::query_as(
            "select
                (select count(*) from turn where state = 'queued') as turns_queued,
                (select count(*) from turn where state = 'running') as turns_running,
                job.*,
                (select count(*) from job where worker_id is not null) as jobs_held,
                sandbox.*,
                delivery.*
             from (
                 select
                     count(*) as jobs_ready,
                     coalesce(extract(epoch from now() - min(ready_at)), 0)::float8 as jobs_ready_age_seconds
                 from job
                 -- A sandbox of a machine that is off waits for it, and keeps nobody waiting.
                 where ready_at <= now() and kind <> 'idle'
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
             ) delivery",
        )
        .fetch_one(&self.system)
        .await?)
    }
}
