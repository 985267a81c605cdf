//! Nodes: machines whose sandboxes only they can reach, alive while they send heartbeats.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::limit::NODE_DAYS,
    domain::environment::{NodeCapacity, Size},
    store::{Result, Store},
};

/// Whether a node could have a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct NodeFit {
    pub node_id: Uuid,
    /// Without any other sandbox.
    pub fits: bool,
    /// Beside those that it has.
    pub has_capacity: bool,
}

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

    /// Whether a node has been silent for so long that its sandboxes are lost: as long as `silence`, and as its
    /// sandboxes may run without a heartbeat.
    pub async fn is_node_lost(&self, node: Uuid, silence: Duration) -> Result<bool> {
        let is_lost = sqlx::query_scalar(
            "select not exists (
                select from node
                where node_id = $1 and seen_at > now() - greatest($2 * interval '1 millisecond', orphan_timeout)
             )",
        )
        .bind(node)
        .bind(i64::try_from(silence.as_millis()).unwrap_or(i64::MAX))
        .fetch_one(&self.system)
        .await?;
        Ok(is_lost)
    }

    /// Returns the nodes in the order of their free capacity: first the one of whose memory and CPUs the smallest part
    /// is reserved, last those whose disk is nearly full. Leaves out nodes that have never sent a heartbeat.
    pub async fn nodes_by_free_capacity(&self, nodes: &[Uuid], size: Size) -> Result<Vec<NodeFit>> {
        let ordered = sqlx::query_as(
            "select n.node_id,
                    coalesce($2 <= n.cpu_millis and $3 <= n.memory_bytes and $4 <= n.pids and $5 <= n.disk_bytes, true)
                        as fits,
                    not n.is_disk_low
                        and coalesce(r.cpu_millis + $2 <= n.cpu_millis and r.memory_bytes + $3 <= n.memory_bytes
                                     and r.pids + $4 <= n.pids and r.disk_bytes + $5 <= n.disk_bytes, true)
                        as has_capacity
             from node n
             cross join lateral (
                 select coalesce(sum(s.cpu_millis), 0) as cpu_millis, coalesce(sum(s.memory_bytes), 0) as memory_bytes,
                        coalesce(sum(s.pids), 0) as pids, coalesce(sum(s.disk_bytes), 0) as disk_bytes
                 from sandbox s
                 where s.node_id = n.node_id and s.state <> 'ended'
             ) r
             where n.node_id = any($1)
             order by n.is_disk_low,
                      greatest(r.memory_bytes / nullif(n.memory_bytes, 0), r.cpu_millis / nullif(n.cpu_millis, 0))
                          nulls first,
                      n.node_id",
        )
        .bind(nodes)
        .bind(i64::from(size.cpu_millis))
        .bind(size.memory_bytes.cast_signed())
        .bind(i64::from(size.pids))
        .bind(size.disk_bytes.cast_signed())
        .fetch_all(&self.system)
        .await?;
        Ok(ordered)
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
