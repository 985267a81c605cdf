//! Live processes of the deployment, by the heartbeats in the table `process`.

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Result, Store};

/// A process and its part in the deployment.
#[derive(Clone, Debug)]
pub struct Process {
    pub id: Uuid,
    /// The nodes of a worker; none if the process runs no jobs.
    pub nodes: Option<ReachableNodes>,
    /// Serves the API and sends deliveries.
    pub is_api: bool,
}

/// The nodes that a worker reaches now: it runs jobs of sessions whose sandbox is on one of them. Cheap to clone;
/// all clones are one.
#[derive(Clone, Debug, Default)]
pub struct ReachableNodes(Arc<RwLock<Vec<Uuid>>>);

impl ReachableNodes {
    /// Adds or removes a node. Returns whether that changed anything.
    pub fn set(&self, node: Uuid, is_reachable: bool) -> bool {
        let mut nodes = self.0.write().expect("no code panics while it holds the lock of the nodes");
        match nodes.iter().position(|known| *known == node) {
            None if is_reachable => nodes.push(node),
            Some(at) if !is_reachable => drop(nodes.remove(at)),
            _ => return false,
        }
        true
    }

    /// The nodes, in the order in which they were added.
    pub fn list(&self) -> Vec<Uuid> {
        self.0.read().expect("no code panics while it holds the lock of the nodes").clone()
    }

    pub fn contains(&self, node: Uuid) -> bool {
        self.list().contains(&node)
    }
}

impl From<Uuid> for ReachableNodes {
    fn from(node: Uuid) -> Self {
        let nodes = Self::default();
        nodes.set(node, true);
        nodes
    }
}

/// A live process as of its last heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub(super) struct Heartbeat {
    #[sqlx(rename = "process_id")]
    pub(super) id: Uuid,
    /// The nodes that a worker reached; none if the process runs no jobs.
    #[sqlx(rename = "node_ids")]
    pub(super) nodes: Option<Vec<Uuid>>,
    pub(super) is_api: bool,
    /// Jobs that the worker could start.
    pub(super) free_slots: i32,
}

impl Heartbeat {
    /// Whether the process runs jobs that need one of `nodes`.
    pub(super) fn reaches_any(&self, nodes: &[Uuid]) -> bool {
        self.nodes.iter().flatten().any(|node| nodes.contains(node))
    }
}

impl Process {
    /// Creates a process that is none of a deployment's: it runs no jobs and serves no API.
    pub fn alone(id: Uuid) -> Self {
        Self { id, nodes: None, is_api: false }
    }
}

impl Store {
    /// Records a process's heartbeat; returns the processes with one during the last `ttl`.
    ///
    /// Also deletes the rows of processes that are long gone. Reads the whole table: it has a row per process.
    pub(super) async fn record_process(
        &self,
        process: &Process,
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
                insert into process as p (process_id, node_id, node_ids, is_api, free_slots, reads_segments)
                values ($1, ($2::uuid[])[1], $2, $3, $4, true)
                on conflict (process_id) do update
                set free_slots = excluded.free_slots, seen_at = now(), node_id = excluded.node_id,
                    node_ids = excluded.node_ids
             )
             select process_id, coalesce(node_ids, case when node_id is not null then array[node_id] end) as node_ids,
                    is_api, free_slots
             from process
             where seen_at >= now() - $5 * interval '1 second' and process_id <> $1
             union all
             select $1, $2, $3, $4
             order by process_id",
        )
        .bind(process.id)
        .bind(process.nodes.as_ref().map(ReachableNodes::list))
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
