//! Nodes: machines whose sandboxes only they can reach, alive while they send heartbeats.

use std::time::Duration;

use uuid::Uuid;

use crate::{
    base::limit::NODE_DAYS,
    domain::environment::NodeCapacity,
    store::{Result, Store},
};

impl Store {
    /// Records a node's heartbeat: how long its sandboxes may run after it stops, the resources that it reserves at most
    /// (`None` for one that makes no sandboxes), and whether its disk is nearly full.
    pub async fn record_heartbeat(
        &self,
        node: Uuid,
        orphan_timeout: Duration,
        capacity: Option<NodeCapacity>,
        is_disk_low: bool,
    ) -> Result<()> {
        let number = |of: fn(NodeCapacity) -> u64| Some(i64::try_from(of(capacity?)).unwrap_or(i64::MAX));
        sqlx::query(
            "insert into node (node_id, orphan_timeout, cpu_millis, memory_bytes, pids, disk_bytes, is_disk_low)
             values ($1, $2 * interval '1 millisecond', $3, $4, $5, $6, $7)
             on conflict (node_id) do update
             set seen_at = now(), orphan_timeout = excluded.orphan_timeout, cpu_millis = excluded.cpu_millis,
                 memory_bytes = excluded.memory_bytes, pids = excluded.pids, disk_bytes = excluded.disk_bytes,
                 is_disk_low = excluded.is_disk_low",
        )
        .bind(node)
        .bind(i64::try_from(orphan_timeout.as_millis()).unwrap_or(i64::MAX))
        .bind(number(|capacity| capacity.cpu_millis))
        .bind(number(|capacity| capacity.memory_bytes))
        .bind(number(|capacity| capacity.pids))
        .bind(number(|capacity| capacity.disk_bytes))
        .bind(is_disk_low)
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Deletes nodes that have been silent for `NODE_DAYS` and have neither a sandbox nor a job, and the rows of
    /// their root file systems.
    pub async fn delete_silent_nodes(&self) -> Result<u64> {
        let done = sqlx::query(
            "with gone as (
                delete from node n
                where n.seen_at < now() - make_interval(days => $1)
                  and not exists (select from sandbox s where s.node_id = n.node_id and s.state <> 'ended')
                  and not exists (select from job j where j.node_id = n.node_id)
                returning n.node_id
             )
             delete from rootfs where node_id in (select node_id from gone)",
        )
        .bind(NODE_DAYS)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }
}
