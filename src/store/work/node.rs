//! Nodes: machines whose sandboxes only they can reach, alive while they send heartbeats.

use std::time::Duration;

use uuid::Uuid;

use crate::store::{Result, Store};

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
}
