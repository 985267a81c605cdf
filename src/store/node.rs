//! Nodes: machines whose boxes only they can reach, known by their heartbeat.

use uuid::Uuid;

use super::{Result, Store};

impl Store {
    /// Says that a node is alive.
    pub async fn beat(&self, node: Uuid) -> Result<()> {
        sqlx::query(
            "insert into node (node_id) values ($1) on conflict (node_id) do update set seen_at = now()",
        )
        .bind(node)
        .execute(&self.system)
        .await?;
        Ok(())
    }
}
