//! Admission of sandboxes: a row only for what its node and its organization have capacity for.
//!
//! Called by `lifecycle` before a sandbox is created. Creations on one node are decided one after the other, under a
//! lock of the node's row; those that find no capacity wait in the order in which they first asked.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use super::sandbox::{NewSandbox, millis};
use crate::{
    base::limit::{SANDBOX_WAIT_LOG_INTERVAL, SANDBOX_WAIT_SEEN},
    domain::{OrgId, SessionId},
    store::{Error, Result, Store, record::fence},
};

/// Maxima of one organization; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrganizationMaxima {
    pub sandboxes: Option<u32>,
    pub memory_bytes: Option<u64>,
    pub checkpoint_bytes: Option<u64>,
    /// Root file systems with packages, on each node.
    pub image_bytes: Option<u64>,
}

/// Whether a sandbox may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its row is inserted, after this wait.
    Admitted(Duration),
    /// Another worker holds the session.
    Stale,
    Waiting(Wait),
    /// The node can never have capacity for it.
    TooLarge(Shortage),
}

/// A session that waits for capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub shortage: Shortage,
    /// Number of sessions that are served before, plus 1.
    pub queue_position: u32,
    /// Time since it first asked.
    pub waited: Duration,
    /// The log does not have this reason, or has had it for `SANDBOX_WAIT_LOG_INTERVAL`.
    pub is_news: bool,
}

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
    const ALL: [Self; 9] = [
        Self::Queue,
        Self::NodeCpu,
        Self::NodeMemory,
        Self::NodePids,
        Self::NodeDisk,
        Self::NodeDiskLow,
        Self::OrganizationSandboxes,
        Self::OrganizationMemory,
        Self::OrganizationCheckpoints,
    ];

    /// Whether another node would not help.
    pub fn is_of_organization(self) -> bool {
        matches!(self, Self::OrganizationSandboxes | Self::OrganizationMemory | Self::OrganizationCheckpoints)
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

/// Answer to the question whether a sandbox may be created.
#[derive(FromRow)]
struct Decided {
    /// The epoch holds the session.
    is_held: bool,
    /// The first resource that is missing.
    shortage: Option<String>,
    /// The node will never have enough of it.
    is_too_large: Option<bool>,
    ahead: Option<i64>,
    /// Time for which the session has waited.
    waited_ms: i64,
    is_news: bool,
}

impl Store {
    /// Inserts the row of a sandbox, and its `idle` job, if there is capacity for it on its node; else notes that the
    /// session waits. `queue`: only after the sessions that asked before, and the nodes that the session waits for.
    ///
    /// Binds the session's jobs to the sandbox's node. One statement: the locks under which creations are decided
    /// (`sojourn_reserved`) are held by no client. The row of the session is locked before them.
    ///
    /// # Errors
    /// `Conflict("sandbox_live")` when the session has one already.
    pub async fn admit_sandbox(
        &self,
        new: &NewSandbox,
        epoch: i64,
        maxima: &OrganizationMaxima,
        queue: Option<&[Uuid]>,
    ) -> Result<Admission> {
        let NewSandbox { size, .. } = new;
        let decided: Decided = sqlx::query_as(ADMIT)
            .bind(new.org.uuid())
            .bind(new.session.uuid())
            .bind(epoch)
            .bind(new.sandbox.uuid())
            .bind(new.node)
            .bind(millis(new.first_check_after))
            .bind(new.life.map(|life| millis(life.ends_in)))
            .bind(new.life.map(|life| millis(life.rotates_in)))
            .bind(i64::from(size.cpu_millis))
            .bind(size.memory_bytes.cast_signed())
            .bind(i64::from(size.pids))
            .bind(size.disk_bytes.cast_signed())
            .bind(maxima.sandboxes.map(i64::from))
            .bind(maxima.memory_bytes.map(u64::cast_signed))
            .bind(maxima.checkpoint_bytes.map(u64::cast_signed))
            .bind(queue.is_some())
            .bind(millis(SANDBOX_WAIT_SEEN))
            .bind(queue.unwrap_or(&[new.node]))
            .bind(SANDBOX_WAIT_LOG_INTERVAL.as_secs_f64())
            .fetch_one(&self.system)
            .await?;
        let waited = Duration::from_millis(u64::try_from(decided.waited_ms).unwrap_or_default());
        let Some(shortage) = decided.shortage else {
            return Ok(if decided.is_held { Admission::Admitted(waited) } else { Admission::Stale });
        };
        let known = Shortage::ALL.into_iter().find(|known| known.word() == shortage);
        let shortage = known.ok_or_else(|| Error::Corrupt(format!("a shortage: {shortage}")))?;
        Ok(match decided.is_too_large {
            Some(true) => Admission::TooLarge(shortage),
            _ => {
                let ahead = u32::try_from(decided.ahead.unwrap_or(0)).unwrap_or(u32::MAX);
                let queue_position = ahead.saturating_add(1);
                Admission::Waiting(Wait { shortage, queue_position, waited, is_news: decided.is_news })
            }
        })
    }

    /// Deletes the waits that nobody continued for a minute, and that no job of their session can continue.
    pub async fn delete_abandoned_waits(&self) -> Result<u64> {
        let done = sqlx::query(
            "delete from sandbox_wait w
             where w.seen_at < now() - interval '1 minute'
               and not exists (
                   select from job j
                   where j.org_id = w.org_id and j.session_id = w.session_id and j.kind in ('turn', 'operation')
               )",
        )
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }

    /// Deletes the wait of a session.
    pub async fn end_sandbox_wait(&self, org: OrgId, session: SessionId) -> Result<()> {
        sqlx::query("delete from sandbox_wait where org_id = $1 and session_id = $2")
            .bind(org.uuid())
            .bind(session.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }
}

/// Decides about a sandbox and inserts its row, or that of a session that waits. A maximum of the organization comes
/// first, also one that an earlier session of it waits for, so that a session that waits for it holds up no other
/// organization.
///
/// A session waits for the nodes of each worker that asked for it, as long as they are heard of: workers may have
/// different nodes.
const ADMIT: &str = concat!(
    "with held as (
        update session u
        set listed_in = pg_current_xact_id()
        from (select $1::uuid as org_id, $2::uuid as session_id, $3::bigint as epoch) m
        where ",
    fence!(),
    "
        returning u.session_id
     ), before as materialized (
        select shortage, since, seen_at
        from sandbox_wait
        where org_id = $1 and session_id = $2
     ), decided as materialized (
        select held.session_id, too_large.shortage is not null as is_too_large,
               case when missing.shortage like 'organization%' then r.org_ahead else r.node_ahead end as ahead,
               coalesce(too_large.shortage, missing.shortage) as shortage
        from held
        cross join lateral sojourn_reserved(
            $1, $2, $5, num_nonnulls($13::bigint, $14::bigint, $15::bigint) > 0, $15 is not null,
            now() - $17 * interval '1 millisecond'
        ) r
        left join node n on n.node_id = $5
        left join lateral (
            select w.shortage
            from sandbox_wait w
            where w.org_id = $1 and w.shortage like 'organization%'
            order by w.since
            limit 1
        ) earlier on $16 and r.org_ahead > 0
        cross join lateral (
            select case
                when $10 > n.memory_bytes then 'node_memory'
                when $9 > n.cpu_millis then 'node_cpu'
                when $11 > n.pids then 'node_pids'
                when $12 > n.disk_bytes then 'node_disk'
            end as shortage
        ) too_large
        cross join lateral (
            select case
                when r.org_sandboxes + 1 > $13 then 'organization_sandboxes'
                when r.org_memory_bytes + $10 > $14 then 'organization_memory'
                when r.org_checkpoint_bytes >= $15 then 'organization_checkpoints'
                when $16 and num_nonnulls($13::bigint, $14::bigint, $15::bigint) > 0 and r.org_ahead > 0 then coalesce(earlier.shortage, 'organization_sandboxes')
                when n.is_disk_low then 'node_disk_low'
                when r.node_memory_bytes + $10 > n.memory_bytes then 'node_memory'
                when r.node_cpu_millis + $9 > n.cpu_millis then 'node_cpu'
                when r.node_pids + $11 > n.pids then 'node_pids'
                when r.node_disk_bytes + $12 > n.disk_bytes then 'node_disk'
                when $16 and r.node_ahead > 0 then 'queue'
            end as shortage
        ) missing
     ), admitted as (
        select session_id from decided where shortage is null
     ), tied as (
        update job j
        set node_id = $5
        from admitted
        where j.org_id = $1 and j.session_id = admitted.session_id and j.kind <> 'idle'
     ), idle as (
        insert into job (org_id, session_id, kind, ready_at, is_scheduled, node_id)
        select $1, session_id, 'idle', now() + $6 * interval '1 millisecond', true, $5 from admitted
        on conflict (org_id, session_id, kind) do update
        set ready_at = excluded.ready_at, is_scheduled = true, node_id = excluded.node_id, worker_id = null
        where job.worker_id is null or job.ready_at <= now()
     ), inserted as (
        insert into sandbox (org_id, sandbox_id, session_id, node_id, state, expires_at, rotates_at,
                             cpu_millis, memory_bytes, pids, disk_bytes)
        select $1, $4, session_id, $5, 'live', now() + $7 * interval '1 millisecond',
               now() + $8 * interval '1 millisecond', $9, $10, $11, $12
        from admitted
     ), unqueued as (
        delete from sandbox_wait w
        using admitted
        where w.org_id = $1 and w.session_id = admitted.session_id
     ), waiting as (
        -- The time of the row, not of the transaction: in the order of the lock.
        insert into sandbox_wait (org_id, session_id, node_id, node_ids, shortage, queue_position, since)
        select $1, session_id, $5, $18, shortage, (ahead + 1)::integer, clock_timestamp()
        from decided
        where shortage is not null and not is_too_large
        on conflict (org_id, session_id) do update
        set node_id = excluded.node_id,
            node_ids = (
                select array_agg(distinct asked.node_id)
                from unnest(coalesce(sandbox_wait.node_ids, array[sandbox_wait.node_id]) || excluded.node_ids)
                    as asked (node_id)
                left join node n on n.node_id = asked.node_id
                where asked.node_id = any(excluded.node_ids) or n.seen_at > now() - interval '1 minute'
            ),
            shortage = excluded.shortage,
            queue_position = excluded.queue_position, seen_at = now()
     )
     select exists (select from held) as is_held, d.shortage, d.is_too_large, d.ahead,
            coalesce(greatest(extract(epoch from now() - b.since) * 1000, 0), 0)::bigint as waited_ms,
            coalesce(
                b.shortage is distinct from d.shortage
                or floor(extract(epoch from greatest(now() - b.since, interval '0')) / $19)
                   <> floor(extract(epoch from greatest(b.seen_at - b.since, interval '0')) / $19),
                false
            ) as is_news
     from (select) one
     left join decided d on true
     left join before b on true"
);
