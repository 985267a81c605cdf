//! Admission of sandboxes: a row only for what its node and its organization have capacity for.
//!
//! Called by `lifecycle` before a sandbox is created. Creations on one node are decided one after the other, under a
//! lock of the node's row; those that find no capacity wait in the order in which they first asked.

use sqlx::FromRow;

use super::sandbox::NewSandbox;
use crate::{
    base::limit::{NODE_HEARTBEAT_TIMEOUT, SANDBOX_WAIT_SEEN},
    domain::{OrgId, SessionId, environment::Size},
    store::{Result, Store, connection::Connection},
};

/// Resources that a node reserves for its sandboxes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}

/// Maxima of one organization; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrganizationMaxima {
    pub sandboxes: Option<u32>,
    pub memory_bytes: Option<u64>,
    pub checkpoint_bytes: Option<u64>,
}

/// Whether a sandbox may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its row is inserted.
    Admitted,
    /// Another worker holds the session.
    Stale,
    Waiting(Shortage, QueuePosition),
    /// The node can never have capacity for it.
    TooLarge(Shortage),
}

/// Number of sessions that are served before, plus 1.
pub type QueuePosition = u32;

/// Reason why a sandbox waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Sessions that asked before.
    Queue,
    NodeCpu,
    NodeMemory,
    NodePids,
    NodeDisk,
    /// The disk of the node is nearly full.
    NodeDiskLow,
    OrganizationSandboxes,
    OrganizationMemory,
    OrganizationCheckpoints,
}

impl Shortage {
    /// Whether the session waits for its own organization, and lets others pass.
    fn is_of_organization(self) -> bool {
        self.word().starts_with("organization")
    }

    /// Name in events and in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::NodeCpu => "node_cpu",
            Self::NodeMemory => "node_memory",
            Self::NodePids => "node_pids",
            Self::NodeDisk => "node_disk",
            Self::NodeDiskLow => "node_disk_low",
            Self::OrganizationSandboxes => "organization_sandboxes",
            Self::OrganizationMemory => "organization_memory",
            Self::OrganizationCheckpoints => "organization_checkpoints",
        }
    }
}

#[derive(FromRow)]
struct CapacityRow {
    cpu_millis: Option<i64>,
    memory_bytes: Option<i64>,
    pids: Option<i64>,
    disk_bytes: Option<i64>,
    is_disk_low: bool,
}

/// Resources that are reserved on the node and for the organization, and the sessions that wait before this one.
#[derive(FromRow)]
struct Reserved {
    node_cpu_millis: i64,
    node_memory_bytes: i64,
    node_pids: i64,
    node_disk_bytes: i64,
    organization_sandboxes: i64,
    organization_memory_bytes: i64,
    checkpoint_bytes: i64,
    /// Sessions that wait for the node, and those that wait for the organization, before this one.
    ahead: i64,
    organization_ahead: i64,
}

impl Store {
    /// Inserts the row of a sandbox, and its `idle` job, if there is capacity for it; else notes that the session waits.
    /// `is_in_queue`: only after the sessions that asked before.
    ///
    /// # Errors
    /// `Conflict("sandbox_live")` when the session has one already.
    pub async fn admit_sandbox(
        &self,
        new: &NewSandbox,
        epoch: i64,
        maxima: &OrganizationMaxima,
        is_in_queue: bool,
    ) -> Result<Admission> {
        let mut connection = self.system.begin().await?;
        // One creation on a node at a time. Statements after the locks see what the others inserted.
        let capacity: Option<CapacityRow> = sqlx::query_as(
            "select cpu_millis, memory_bytes, pids, disk_bytes, is_disk_low from node where node_id = $1 for update",
        )
        .bind(new.node)
        .fetch_optional(&mut connection)
        .await?;
        if *maxima != OrganizationMaxima::default() {
            sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
                .bind(format!("sandboxes/{}", new.org))
                .execute(&mut connection)
                .await?;
        }
        let reserved = reserved(&mut connection, new, maxima).await?;
        let shortage = shortage(&new.size, capacity.as_ref(), maxima, &reserved)
            .filter(|shortage| is_in_queue || *shortage != Shortage::Queue);
        let too_large = too_large(&new.size, capacity.as_ref());
        let Some(shortage) = too_large.or(shortage) else {
            let is_admitted = super::sandbox::begin(&mut connection, new, epoch).await?;
            connection.commit().await?;
            return Ok(if is_admitted { Admission::Admitted } else { Admission::Stale });
        };
        if too_large.is_some() {
            return Ok(Admission::TooLarge(shortage));
        }
        sqlx::query(
            // The time of the statement, not of the transaction: in the order of the lock.
            "insert into sandbox_wait (org_id, session_id, node_id, shortage, since)
             values ($1, $2, $3, $4, clock_timestamp())
             on conflict (org_id, session_id) do update
             set node_id = excluded.node_id, shortage = excluded.shortage, seen_at = now(),
                 -- A wait that nobody continued is over.
                 since = case
                     when sandbox_wait.seen_at < now() - $5 * interval '1 millisecond' then excluded.since
                     else sandbox_wait.since
                 end",
        )
        .bind(new.org.uuid())
        .bind(new.session.uuid())
        .bind(new.node)
        .bind(shortage.word())
        .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
        .execute(&mut connection)
        .await?;
        connection.commit().await?;
        let ahead = if shortage.is_of_organization() { reserved.organization_ahead } else { reserved.ahead };
        Ok(Admission::Waiting(shortage, u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1)))
    }

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
                        coalesce(max(p.cpu_millis / nullif(n.cpu_millis, 0)), 0)::float8 as node_cpu_reserved_ratio
                 from node n
                 cross join lateral (
                     select coalesce(sum(s.memory_bytes), 0) as memory_bytes,
                            coalesce(sum(s.cpu_millis), 0) as cpu_millis
                     from sandbox s
                     where s.node_id = n.node_id and s.state <> 'ended'
                 ) p
                 where n.seen_at > now() - $2 * interval '1 millisecond'
             ) node",
        )
        .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
        .bind(NODE_HEARTBEAT_TIMEOUT.as_millis() as i64)
        .fetch_one(&self.system)
        .await?)
    }

    /// Deletes the waits that nobody continued for a minute.
    pub async fn delete_abandoned_waits(&self) -> Result<u64> {
        let done = sqlx::query("delete from sandbox_wait where seen_at < now() - interval '1 minute'")
            .execute(&self.system)
            .await?;
        Ok(done.rows_affected())
    }

    /// Forgets that a session waits.
    pub async fn end_sandbox_wait(&self, org: OrgId, session: SessionId) -> Result<()> {
        sqlx::query("delete from sandbox_wait where org_id = $1 and session_id = $2")
            .bind(org.uuid())
            .bind(session.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }
}

/// How much of the nodes is reserved, and who waits.
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
}

/// By the indexes `sandbox_of_node` and `sandbox_live`, and over the sessions that wait, which are few.
async fn reserved(
    connection: &mut Connection,
    new: &NewSandbox,
    maxima: &OrganizationMaxima,
) -> Result<Reserved> {
    Ok(sqlx::query_as(
        "select n.*, o.*, a.*,
                case when $5 then (
                    select coalesce(sum(bytes), 0)::bigint from checkpoint where org_id = $1
                ) else 0 end as checkpoint_bytes
         from (
             select coalesce(sum(cpu_millis), 0)::bigint as node_cpu_millis,
                    coalesce(sum(memory_bytes), 0)::bigint as node_memory_bytes,
                    coalesce(sum(pids), 0)::bigint as node_pids,
                    coalesce(sum(disk_bytes), 0)::bigint as node_disk_bytes
             from sandbox
             where node_id = $3 and state <> 'ended'
         ) n, (
             select count(*) as organization_sandboxes,
                    coalesce(sum(memory_bytes), 0)::bigint as organization_memory_bytes
             from sandbox
             where org_id = $1 and state <> 'ended'
         ) o, (
             select count(*) filter (
                        where w.node_id = $3 and w.shortage not like 'organization%'
                    ) as ahead,
                    count(*) filter (
                        where w.org_id = $1 and w.shortage like 'organization%'
                    ) as organization_ahead
             from sandbox_wait w
             where w.seen_at >= now() - $4 * interval '1 millisecond'
               and w.since < coalesce(
                   (select since from sandbox_wait where org_id = $1 and session_id = $2),
                   clock_timestamp()
               )
         ) a",
    )
    .bind(new.org.uuid())
    .bind(new.session.uuid())
    .bind(new.node)
    .bind(SANDBOX_WAIT_SEEN.as_millis() as i64)
    .bind(maxima.checkpoint_bytes.is_some())
    .fetch_one(connection)
    .await?)
}

/// First resource that is missing for a sandbox of this size. Its own organization comes first, so that who waits for it holds up
/// nobody else.
fn shortage(
    wanted: &Size,
    capacity: Option<&CapacityRow>,
    maxima: &OrganizationMaxima,
    reserved: &Reserved,
) -> Option<Shortage> {
    let is_above = |reserved: i64, wanted: u64, max: Option<u64>| {
        max.is_some_and(|max| reserved.unsigned_abs().saturating_add(wanted) > max)
    };
    let of_node = |value: fn(&CapacityRow) -> Option<i64>| capacity.and_then(value).map(i64::unsigned_abs);
    let shortages = [
        (
            Shortage::OrganizationSandboxes,
            is_above(reserved.organization_sandboxes, 1, maxima.sandboxes.map(u64::from)),
        ),
        (
            Shortage::OrganizationMemory,
            is_above(reserved.organization_memory_bytes, wanted.memory_bytes, maxima.memory_bytes),
        ),
        (Shortage::OrganizationCheckpoints, is_above(reserved.checkpoint_bytes, 1, maxima.checkpoint_bytes)),
        (Shortage::NodeDiskLow, capacity.is_some_and(|capacity| capacity.is_disk_low)),
        (
            Shortage::NodeMemory,
            is_above(reserved.node_memory_bytes, wanted.memory_bytes, of_node(|node| node.memory_bytes)),
        ),
        (
            Shortage::NodeCpu,
            is_above(reserved.node_cpu_millis, wanted.cpu_millis.into(), of_node(|node| node.cpu_millis)),
        ),
        (Shortage::NodePids, is_above(reserved.node_pids, wanted.pids.into(), of_node(|node| node.pids))),
        (
            Shortage::NodeDisk,
            is_above(reserved.node_disk_bytes, wanted.disk_bytes, of_node(|node| node.disk_bytes)),
        ),
        (Shortage::Queue, reserved.ahead > 0 || reserved.organization_ahead > 0),
    ];
    shortages.into_iter().find_map(|(shortage, is_short)| is_short.then_some(shortage))
}

/// Resource of which a sandbox of this size needs more than the node has.
fn too_large(wanted: &Size, capacity: Option<&CapacityRow>) -> Option<Shortage> {
    let capacity = capacity?;
    let is_above = |wanted: u64, max: Option<i64>| max.is_some_and(|max| wanted > max.unsigned_abs());
    let shortages = [
        (Shortage::NodeMemory, is_above(wanted.memory_bytes, capacity.memory_bytes)),
        (Shortage::NodeCpu, is_above(wanted.cpu_millis.into(), capacity.cpu_millis)),
        (Shortage::NodePids, is_above(wanted.pids.into(), capacity.pids)),
        (Shortage::NodeDisk, is_above(wanted.disk_bytes, capacity.disk_bytes)),
    ];
    shortages.into_iter().find_map(|(shortage, is_short)| is_short.then_some(shortage))
}
