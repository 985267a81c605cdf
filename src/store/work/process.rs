//! Live processes of the deployment, by the heartbeats in the table `process`.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Result, Store};

/// A process and its part in the deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: Uuid,
    /// The node of a worker; none if the process runs no jobs.
    pub node: Option<Uuid>,
    /// Serves the API and sends deliveries.
    pub is_api: bool,
}

/// A live process as of its last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub(super) struct Heartbeat {
    #[sqlx(rename = "process_id")]
    pub(super) id: Uuid,
    #[sqlx(rename = "node_id")]
    pub(super) node: Option<Uuid>,
    pub(super) is_api: bool,
    /// Jobs that the worker could start.
    pub(super) free_slots: i32,
}

impl Process {
    /// Creates a process that is none of a deployment's: it runs no jobs and serves no API.
    pub fn alone(id: Uuid) -> Self {
        Self { id, node: None, is_api: false }
    }
}

impl Store {
    /// Records a process's heartbeat; returns the processes with one during the last `ttl`.
    ///
    /// Also deletes the rows of processes that are long gone. Reads the whole table: it has a row per process.
    pub(super) async fn record_process(
        &self,
        process: Process,
        free_slots: i32,
        ttl: Duration,
    ) -> Result<Vec<Heartbeat>> {
        let processes = sqlx::query_as(
            "with gone as (
                delete from process
                where process_id in (
                    select process_id
                    from process
                    where seen_at < now() - $5 * 100 * interval '1 second'
                    for update skip locked
                )
             ), me as (
                insert into process as p (process_id, node_id, is_api, free_slots, reads_segments)
                values ($1, $2, $3, $4, true)
                on conflict (process_id) do update
                set free_slots = excluded.free_slots, seen_at = now()
             )
             select process_id, node_id, is_api, free_slots
             from process
             where seen_at >= now() - $5 * interval '1 second' and process_id <> $1
             union all
             select $1, $2, $3, $4
             order by process_id",
        )
        .bind(process.id)
        .bind(process.node)
        .bind(process.is_api)
        .bind(free_slots)
        .bind(ttl.as_secs_f64())
        .fetch_all(&self.system)
        .await?;
        Ok(processes)
    }

    /// Removes a process that ends.
    pub(super) async fn remove_process(&self, process: Uuid) -> Result<()> {
        sqlx::query("delete from process where process_id = $1").bind(process).execute(&self.system).await?;
        Ok(())
    }
}
