//! Sandbox rows: written before the sandbox exists, ended after it is removed.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    record::{Fence, held},
};
use crate::{
    base::Id,
    domain::{
        CheckpointId, OrgId, SandboxId, SessionId,
        environment::{Life, Size},
    },
};

/// Reason for which a sandbox ends that another one replaces.
pub const ROTATED: &str = "rotated";

/// A sandbox that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSandbox {
    pub org: OrgId,
    pub session: SessionId,
    pub sandbox: SandboxId,
    pub node: Uuid,
    /// The log contains its `sandbox.created` event.
    pub is_announced: bool,
    pub state: Liveness,
    /// The checkpoint with all its files; none once a process may have run since.
    pub checkpoint: Option<CheckpointId>,
    /// Remaining lifetime, by the database's clock.
    pub life: Option<Life>,
}

/// State of a sandbox that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    Live,
    /// Frozen, or about to be when this was written.
    Frozen,
    /// Being removed, for this reason.
    Ending(String),
}

/// A sandbox to create.
#[derive(Clone, Copy, Debug)]
pub struct NewSandbox {
    pub org: OrgId,
    pub session: SessionId,
    pub sandbox: SandboxId,
    pub node: Uuid,
    /// Its lifetime; unlimited when `None`.
    pub life: Option<Life>,
    /// Resources that are reserved for it.
    pub size: Size,
    /// Delay until the first check whether it is still needed.
    pub first_check_after: Duration,
}

/// The ended sandboxes of a session.
#[derive(Clone, Debug, Default)]
pub struct EndedSandboxes {
    /// The last one announced in the log and those after it: one of them has the session's files.
    pub sandboxes: Vec<SandboxId>,
    /// One of them was announced in the log.
    pub was_used: bool,
    /// The checkpoint with all files of the last one.
    pub checkpoint: Option<CheckpointId>,
    /// The node of the last one that was announced.
    pub node: Option<Uuid>,
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    session_id: Uuid,
    sandbox_id: Uuid,
    node_id: Uuid,
    is_announced: bool,
    state: String,
    ending: Option<String>,
    checkpoint_id: Option<Uuid>,
    rotates_in: Option<f64>,
    ends_in: Option<f64>,
}

impl From<Row> for LiveSandbox {
    fn from(row: Row) -> Self {
        Self {
            org: Id::from_uuid(row.org_id),
            session: Id::from_uuid(row.session_id),
            sandbox: Id::from_uuid(row.sandbox_id),
            node: row.node_id,
            is_announced: row.is_announced,
            state: match row.state.as_str() {
                "frozen" => Liveness::Frozen,
                "ending" => Liveness::Ending(row.ending.unwrap_or_default()),
                _ => Liveness::Live,
            },
            checkpoint: row.checkpoint_id.map(Id::from_uuid),
            life: row.rotates_in.zip(row.ends_in).map(|(rotates_in, ends_in)| Life {
                rotates_in: Duration::from_secs_f64(rotates_in.max(0.0)),
                ends_in: Duration::from_secs_f64(ends_in.max(0.0)),
            }),
        }
    }
}

macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "select org_id, session_id, sandbox_id, node_id, is_announced, state, ending, checkpoint_id,
                    extract(epoch from rotates_at - coalesce(paused_at, now()))::float8 as rotates_in,
                    extract(epoch from expires_at - coalesce(paused_at, now()))::float8 as ends_in
             from sandbox ",
            $rest
        )
    };
}

impl Tx {
    /// Returns whether a session has a live or frozen, announced sandbox.
    pub async fn has_sandbox(&mut self, session: SessionId) -> Result<bool> {
        let org = self.org.uuid();
        let there = sqlx::query_scalar(
            "select exists (
                 select from sandbox
                 where org_id = $1 and session_id = $2 and state in ('live', 'frozen') and is_announced
             )",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok(there)
    }

    /// Stops the clock of the lifetime of a session's sandbox.
    pub async fn pause_sandbox(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update sandbox
             set paused_at = now()
             where org_id = $1 and session_id = $2 and state <> 'ended' and paused_at is null",
        )
        .bind(org)
        .bind(session.uuid())
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Restarts the clock of the lifetime, with the remaining time.
    pub async fn resume_sandbox(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update sandbox
             set rotates_at = rotates_at + (now() - paused_at), expires_at = expires_at + (now() - paused_at),
                 used_at = now(), paused_at = null
             where org_id = $1 and session_id = $2 and state <> 'ended' and paused_at is not null",
        )
        .bind(org)
        .bind(session.uuid())
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

impl Store {
    /// Reads the session's live sandbox, by the unique index `sandbox_live`.
    pub async fn live_sandbox(&self, org: OrgId, session: SessionId) -> Result<Option<LiveSandbox>> {
        let row: Option<Row> =
            sqlx::query_as(columns!("where org_id = $1 and session_id = $2 and state <> 'ended'"))
                .bind(org.uuid())
                .bind(session.uuid())
                .fetch_optional(&self.system)
                .await?;
        Ok(row.map(Into::into))
    }

    /// Records that the sandbox is announced in the log, and marks the session as changed in the list.
    pub async fn record_announced(&self, fence: Fence, sandbox: SandboxId) -> Result<()> {
        sqlx::query("update sandbox set is_announced = true where org_id = $1 and sandbox_id = $2")
            .bind(fence.org.uuid())
            .bind(sandbox.uuid())
            .execute(&self.system)
            .await?;
        // A second statement: the session's row is locked before the sandbox's, never after it.
        sqlx::query(
            "update session set listed_in = pg_current_xact_id() where org_id = $1 and session_id = $2",
        )
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Records that the sandbox is frozen, the checkpoint with its files, and what it still uses.
    ///
    /// Returns whether the fence holds.
    pub async fn record_frozen(
        &self,
        fence: Fence,
        sandbox: SandboxId,
        checkpoint: Option<CheckpointId>,
        usage: Size,
    ) -> Result<bool> {
        self.change(fence, sandbox, "frozen", None, checkpoint, Some(usage)).await
    }

    /// Records that the sandbox is thawed and what it may use, before any process runs in it.
    ///
    /// Clears its checkpoint, because the files may change from here on. Returns whether the fence
    /// holds.
    pub async fn record_thawed(&self, fence: Fence, sandbox: SandboxId, size: Size) -> Result<bool> {
        self.change(fence, sandbox, "live", None, None, Some(size)).await
    }

    /// Makes the `idle` job of the session's sandbox ready after this time.
    ///
    /// Does nothing if it is ready sooner.
    pub async fn expedite_idle(&self, org: OrgId, session: SessionId, after: Duration) -> Result<()> {
        sqlx::query(
            "update job
             set ready_at = least(ready_at, now() + $3 * interval '1 millisecond')
             where org_id = $1 and session_id = $2 and kind = 'idle' and worker_id is null",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(millis(after))
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Records that the sandbox is being removed, so nobody uses it from here on.
    ///
    /// Returns whether the fence holds.
    pub async fn record_ending(
        &self,
        fence: Fence,
        sandbox: SandboxId,
        reason: &str,
        checkpoint: Option<CheckpointId>,
    ) -> Result<bool> {
        self.change(fence, sandbox, "ending", Some(reason), checkpoint, None).await
    }

    async fn change(
        &self,
        fence: Fence,
        sandbox: SandboxId,
        state: &str,
        ending: Option<&str>,
        checkpoint: Option<CheckpointId>,
        size: Option<Size>,
    ) -> Result<bool> {
        let done = sqlx::query(concat!(
            held!(),
            "
             update sandbox b
             set state = $5, ending = $6, checkpoint_id = $7, cpu_millis = coalesce($8, cpu_millis),
                 memory_bytes = coalesce($9, memory_bytes), pids = coalesce($10, pids),
                 disk_bytes = coalesce($11, disk_bytes)
             from held
             where b.org_id = $1 and b.session_id = held.session_id and b.sandbox_id = $4 and b.state <> 'ended'",
        ))
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(sandbox.uuid())
        .bind(state)
        .bind(ending)
        .bind(checkpoint.map(Id::uuid))
        .bind(size.map(|size| i64::from(size.cpu_millis)))
        .bind(size.map(|size| size.memory_bytes.cast_signed()))
        .bind(size.map(|size| i64::from(size.pids)))
        .bind(size.map(|size| size.disk_bytes.cast_signed()))
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Records that the sandbox is removed; any node may serve the session again.
    ///
    /// Does nothing when its row is ended already: by then the session may have another sandbox and
    /// another holder.
    pub async fn end_sandbox(&self, org: OrgId, session: SessionId, sandbox: SandboxId) -> Result<()> {
        sqlx::query(
            "with ended as (
                update sandbox
                set state = 'ended', ended_at = now()
                where org_id = $1 and sandbox_id = $3 and state <> 'ended'
                returning session_id
             ), untied as (
                -- One that is ready becomes ready again: other workers read what became ready recently.
                update job j
                set node_id = null,
                    ready_at = case
                        when j.worker_id is null and not j.is_scheduled then greatest(j.ready_at, now())
                        else j.ready_at
                    end
                from ended
                where j.org_id = $1 and j.session_id = $2 and j.kind <> 'idle'
             )
             delete from job j
             using ended
             where j.org_id = $1 and j.session_id = $2 and j.kind = 'idle' and j.worker_id is null",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(sandbox.uuid())
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Returns the ended sandboxes of a session, by the index `sandbox_of_session`.
    pub async fn past_sandboxes(&self, org: OrgId, session: SessionId) -> Result<EndedSandboxes> {
        let rows: Vec<(Uuid, bool, Option<Uuid>, Uuid, bool)> = sqlx::query_as(
            "select sandbox_id, is_announced, checkpoint_id, node_id, ending is not distinct from 'restored'
             from sandbox
             where org_id = $1
               and session_id = $2
               and state = 'ended'
               and created_at >= coalesce((
                   select max(created_at)
                   from sandbox
                   where org_id = $1 and session_id = $2 and state = 'ended' and is_announced
               ), '-infinity')
             order by created_at",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .fetch_all(&self.system)
        .await?;
        let used = rows.iter().find(|(_, is_announced, ..)| *is_announced);
        Ok(EndedSandboxes {
            was_used: used.is_some(),
            checkpoint: used.and_then(|(_, _, checkpoint, ..)| checkpoint.map(Id::from_uuid)),
            node: used.map(|(_, _, _, node, _)| *node),
            // The session does not continue with files that a restore replaced.
            sandboxes: rows
                .iter()
                .filter(|(.., is_restored_away)| !is_restored_away)
                .map(|(sandbox, ..)| Id::from_uuid(*sandbox))
                .collect(),
        })
    }

    /// Returns every sandbox that should exist on a node, by the index `sandbox_of_node`.
    pub async fn sandboxes_of_node(&self, node: Uuid) -> Result<Vec<LiveSandbox>> {
        let rows: Vec<Row> = sqlx::query_as(columns!("where node_id = $1 and state <> 'ended'"))
            .bind(node)
            .fetch_all(&self.system)
            .await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Returns the sessions whose disks on this node may be deleted.
    ///
    /// The session is archived or unknown, or its files are elsewhere: saved before its last
    /// sandbox was removed, or with a sandbox on another node.
    pub async fn stale_disks(&self, node: Uuid, sessions: &[(OrgId, SessionId)]) -> Result<Vec<SessionId>> {
        let (orgs, ids): (Vec<_>, Vec<_>) =
            sessions.iter().map(|(org, session)| (org.uuid(), session.uuid())).unzip();
        let rows: Vec<(Uuid,)> = sqlx::query_as(
            "select wanted.session_id
             from unnest($1::uuid[], $2::uuid[]) as wanted (org_id, session_id)
             left join session s using (org_id, session_id)
             left join lateral (
                 select b.node_id, b.state, b.ending
                 from sandbox b
                 where b.org_id = wanted.org_id and b.session_id = wanted.session_id and b.is_announced
                 order by b.created_at desc
                 limit 1
             ) last on true
             where s.session_id is null
                or s.status = 'archived'
                or last.node_id <> $3
                or (last.state = 'ended' and last.ending is not null and last.ending <> 'rotated')",
        )
        .bind(orgs)
        .bind(ids)
        .bind(node)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(|(session,)| Id::from_uuid(session)).collect())
    }
}

pub(in crate::store) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
