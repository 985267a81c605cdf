//! Nodes: machines whose sandboxes only they can reach, alive while they send heartbeats.

use std::time::Duration;

use uuid::Uuid;

use crate::{
    base::limit::NODE_DAYS,
    store::{Result, Store},
};

impl Store {
    /// Records a node's heartbeat and how long its sandboxes may run after it stops.
    pub async fn record_heartbeat(&self, node: Uuid, orphan_timeout: Duration) -> Result<()> {
        sqlx::query(
            "insert into node (node_id, orphan_timeout)
             values ($1, $2 * interval '1 millisecond')
             on conflict (node_id) do update
             set seen_at = now(), orphan_timeout = excluded.orphan_timeout",
        )
        .bind(node)
        .bind(i64::try_from(orphan_timeout.as_millis()).unwrap_or(i64::MAX))
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
