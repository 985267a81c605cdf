//! Capacity for sandboxes as the API, the metrics and the operator see it: what is reserved, and which sessions wait.

use std::collections::HashMap;

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{
        Id, Timestamp,
        limit::{NODE_HEARTBEAT_TIMEOUT, SANDBOX_WAIT_SEEN},
    },
    domain::{Session, SessionId},
    store::{Result, Store, Tx},
};

/// A session that waits for capacity for its sandbox.
#[derive(Clone, Debug, FromRow)]
pub struct SandboxWait {
    session_id: Uuid,
    /// The missing resource.
    pub shortage: String,
    /// Number of sessions that are served before, plus 1; as of the last second.
    pub queue_position: i32,
    pub since: Timestamp,
}

/// Resources that an organization takes.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct OrganizationUse {
    /// Sandboxes, frozen ones too.
    pub sandboxes: i64,
    pub memory_bytes: i64,
    pub checkpoint_bytes: i64,
    /// Root file systems with packages, on the node with most of them.
    pub image_bytes: i64,
    /// Sessions that wait for capacity.
    pub waiting: i64,
}

/// A node, for the operator. Resources are null for one whose workers cannot make sandboxes.
#[derive(Clone, Debug, FromRow)]
pub struct NodeUse {
    pub node_id: Uuid,
    /// It sent a heartbeat during the last minute.
    pub is_alive: bool,
    pub seen_at: Timestamp,
    pub is_disk_low: bool,
    pub cpu_millis: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub sandboxes: i64,
    pub reserved_cpu_millis: i64,
    pub reserved_memory_bytes: i64,
    /// Sessions that wait for it.
    pub waiting: i64,
}

/// Reserved part of the nodes, and waiting sessions.
#[derive(Clone, Copy, Debug, Default, FromRow)]
pub struct CapacityGauges {
    /// Sessions that wait for capacity for a sandbox.
    pub sandboxes_waiting: i64,
    /// For how long the first of them has waited, in seconds.
    pub sandboxes_waiting_age_seconds: f64,
    /// Nodes whose disk is nearly full.
    pub nodes_disk_low: i64,
    /// The largest part of the memory of a node that is reserved.
    pub node_memory_reserved_ratio: f64,
    /// The largest part of the CPUs of a node that is reserved.
    pub node_cpu_reserved_ratio: f64,
    pub node_pids_reserved_ratio: f64,
    pub node_disk_reserved_ratio: f64,
    /// Size of the root file systems with packages on all live nodes.
    pub image_bytes: i64,
}

impl Tx {
    /// Returns those of the sessions that wait for capacity.
    pub async fn sandbox_waits(&mut self, sessions: &[Session]) -> Result<HashMap<SessionId, SandboxWait>> {
        let org = self.org.uuid();
        let ids: Vec<_> = sessions.iter().map(|session| session.id.uuid()).collect();
        let rows: Vec<SandboxWait> = sqlx::query_as(
            "select session_id, shortage, coalesce(queue_position, 1) as queue_position, since
             from sandbox_wait
             where org_id = $1 and session_id = any($2) and seen_at >= now() - $3 * interval '1 millisecond'",
        )
        .bind(org)
        .bind(ids)
        .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(|row| (Id::from_uuid(row.session_id), row)).collect())
    }

    /// Returns what the organization takes of its maxima.
    pub async fn capacity(&mut self) -> Result<OrganizationUse> {
        let org = self.org.uuid();
        let used = sqlx::query_as(
            "select s.sandboxes, s.memory_bytes, c.checkpoint_bytes, i.image_bytes, w.waiting
             from (
                 select count(*) as sandboxes, coalesce(sum(memory_bytes), 0)::bigint as memory_bytes
                 from sandbox
                 where org_id = $1 and state <> 'ended'
             ) s, (
                 select coalesce(sum(bytes), 0)::bigint as checkpoint_bytes from checkpoint where org_id = $1
             ) c, (
                 -- Nodes are few, and so are the root file systems of each.
                 select coalesce(max(bytes), 0)::bigint as image_bytes
                 from (
                     select sum(r.bytes) as bytes
                     from node n
                     join rootfs r on r.node_id = n.node_id
                     where r.requested_by = $1 and n.seen_at > now() - $3 * interval '1 millisecond'
                     group by n.node_id
                 ) of_node
             ) i, (
                 select count(*) as waiting
                 from sandbox_wait
                 where org_id = $1 and seen_at >= now() - $2 * interval '1 millisecond'
             ) w",
        )
        .bind(org)
        .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
        .bind(NODE_HEARTBEAT_TIMEOUT.as_millis() as i64)
        .fetch_one(self.connection())
        .await?;
        Ok(used)
    }
}

impl Store {
    /// Counts what is reserved on the live nodes, and the sessions that wait.
    pub async fn capacity_gauges(&self) -> Result<CapacityGauges> {
        Ok(sqlx::query_as(
            "select *
             from (
                 select count(*) as sandboxes_waiting,
                        coalesce(extract(epoch from now() - min(since)), 0)::float8 as sandboxes_waiting_age_seconds
                 from sandbox_wait
                 where seen_at >= now() - $1 * interval '1 millisecond'
             ) waiting, (
                 select count(*) filter (where n.is_disk_low) as nodes_disk_low,
                        coalesce(max(p.memory_bytes / nullif(n.memory_bytes, 0)), 0)::float8
                            as node_memory_reserved_ratio,
                        coalesce(max(p.cpu_millis / nullif(n.cpu_millis, 0)), 0)::float8 as node_cpu_reserved_ratio,
                        coalesce(max(p.pids / nullif(n.pids, 0)), 0)::float8 as node_pids_reserved_ratio,
                        coalesce(max(p.disk_bytes / nullif(n.disk_bytes, 0)), 0)::float8 as node_disk_reserved_ratio
                 from node n
                 cross join lateral (
                     select coalesce(sum(s.memory_bytes), 0) as memory_bytes,
                            coalesce(sum(s.cpu_millis), 0) as cpu_millis,
                            coalesce(sum(s.pids), 0) as pids,
                            coalesce(sum(s.disk_bytes), 0) as disk_bytes
                     from sandbox s
                     where s.node_id = n.node_id and s.state <> 'ended'
                 ) p
                 where n.seen_at > now() - $2 * interval '1 millisecond'
             ) node, (
                 select coalesce(sum(r.bytes), 0)::bigint as image_bytes
                 from node n
                 join rootfs r on r.node_id = n.node_id
                 where n.seen_at > now() - $2 * interval '1 millisecond'
             ) image",
        )
        .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
        .bind(NODE_HEARTBEAT_TIMEOUT.as_millis() as i64)
        .fetch_one(&self.system)
        .await?)
    }

    /// Returns all nodes, the one with the last heartbeat first; for the operator.
    pub async fn nodes(&self) -> Result<Vec<NodeUse>> {
        Ok(sqlx::query_as(
            "select n.node_id, n.seen_at > now() - $1 * interval '1 millisecond' as is_alive, n.seen_at, n.is_disk_low,
                    n.cpu_millis, n.memory_bytes, r.*, w.waiting
             from node n
             cross join lateral (
                 select count(*) as sandboxes, coalesce(sum(s.cpu_millis), 0)::bigint as reserved_cpu_millis,
                        coalesce(sum(s.memory_bytes), 0)::bigint as reserved_memory_bytes
                 from sandbox s
                 where s.node_id = n.node_id and s.state <> 'ended'
             ) r
             cross join lateral (
                 select count(*) as waiting
                 from sandbox_wait w
                 where n.node_id = any(coalesce(w.node_ids, array[w.node_id]))
                   and w.seen_at >= now() - $2 * interval '1 millisecond'
             ) w
             order by n.seen_at desc",
        )
        .bind(NODE_HEARTBEAT_TIMEOUT.as_millis() as i64)
        .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
        .fetch_all(&self.system)
        .await?)
    }
}
