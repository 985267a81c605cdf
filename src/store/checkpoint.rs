//! Checkpoints as rows, and when a box may rest.

use std::time::Duration;

use sqlx::{FromRow, PgExecutor};
use uuid::Uuid;

use super::{
    Result, Store, Tx,
    column::{count, uncount},
    record::{Fence, held},
};
use crate::{
    base::{Id, Timestamp, limit},
    domain::{CheckpointId, SandboxId, SessionId, TenantId},
};

/// The files of a session as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub checkpoint: CheckpointId,
    /// The box whose files these are.
    pub sandbox: SandboxId,
    /// SHA-256 of the blob, in hexadecimal.
    pub digest: String,
    pub bytes: u64,
    pub created_at: Timestamp,
}

/// How long a box has not been needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// Since the last turn, the last use by a caller, the last heartbeat.
    pub idle: Duration,
    /// A turn runs or waits: it may need the box at any time.
    pub is_wanted: bool,
    pub is_archived: bool,
}

#[derive(FromRow)]
struct Row {
    checkpoint_id: Uuid,
    sandbox_id: Uuid,
    digest: String,
    bytes: i64,
    created_at: Timestamp,
}

impl From<Row> for Checkpoint {
    fn from(row: Row) -> Self {
        Self {
            checkpoint: Id::from_uuid(row.checkpoint_id),
            sandbox: Id::from_uuid(row.sandbox_id),
            digest: row.digest,
            bytes: uncount(row.bytes),
            created_at: row.created_at,
        }
    }
}

impl Store {
    /// Stores a checkpoint whose blob is there. Returns whether the fence holds.
    pub async fn add_checkpoint(
        &self,
        fence: Fence,
        checkpoint: CheckpointId,
        sandbox: SandboxId,
        digest: &str,
        bytes: u64,
    ) -> Result<bool> {
        let done = sqlx::query(concat!(
            held!(),
            "
             insert into checkpoint (tenant_id, session_id, checkpoint_id, sandbox_id, digest, bytes)
             select $1, session_id, $4, $5, $6, $7 from held",
        ))
        .bind(fence.tenant.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(checkpoint.uuid())
        .bind(sandbox.uuid())
        .bind(digest)
        .bind(count(bytes))
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// The newest checkpoint of a session, by the primary key.
    pub async fn latest_checkpoint(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Option<Checkpoint>> {
        Ok(self.checkpoints(tenant, session).await?.into_iter().next())
    }

    /// The checkpoints of a session, newest first.
    pub async fn checkpoints(&self, tenant: TenantId, session: SessionId) -> Result<Vec<Checkpoint>> {
        newest(&self.system, tenant, session).await
    }

    /// Removes a checkpoint's row, after its blob.
    pub async fn forget_checkpoint(
        &self,
        tenant: TenantId,
        session: SessionId,
        checkpoint: CheckpointId,
    ) -> Result<()> {
        sqlx::query("delete from checkpoint where tenant_id = $1 and session_id = $2 and checkpoint_id = $3")
            .bind(tenant.uuid())
            .bind(session.uuid())
            .bind(checkpoint.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// How long the session's live box has not been needed.
    pub async fn idle(&self, tenant: TenantId, session: SessionId) -> Result<Option<Idle>> {
        let row: Option<(f64, bool, bool)> = sqlx::query_as(
            "select extract(epoch from now() - greatest(b.used_at, b.heartbeat_at, t.completed_at))::float8,
                    s.running_turn_id is not null or s.queued_turn_id is not null,
                    s.status = 'archived'
             from sandbox b
             join session s using (tenant_id, session_id)
             left join turn t
                 on t.tenant_id = s.tenant_id and t.session_id = s.session_id and t.turn_id = s.ended_turn_id
             where b.tenant_id = $1 and b.session_id = $2 and b.state <> 'ended'",
        )
        .bind(tenant.uuid())
        .bind(session.uuid())
        .fetch_optional(&self.system)
        .await?;
        let idle = |(seconds, is_wanted, is_archived): (f64, bool, bool)| Idle {
            idle: Duration::from_secs_f64(seconds.max(0.0)),
            is_wanted,
            is_archived,
        };
        Ok(row.map(idle))
    }
}

/// A caller's wish that its box be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub sandbox: SandboxId,
    /// The log has not said so for a while.
    pub is_due: bool,
}

/// By the primary key; the newest are few.
async fn newest(
    executor: impl PgExecutor<'_>,
    tenant: TenantId,
    session: SessionId,
) -> Result<Vec<Checkpoint>> {
    let rows: Vec<Row> = sqlx::query_as(
        "select checkpoint_id, sandbox_id, digest, bytes, created_at
         from checkpoint
         where tenant_id = $1 and session_id = $2
         order by created_at desc, checkpoint_id desc
         limit $3",
    )
    .bind(tenant.uuid())
    .bind(session.uuid())
    .bind(limit::HOUSEKEEPING_BATCH)
    .fetch_all(executor)
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

impl Tx {
    /// The checkpoints of a session, newest first.
    pub async fn checkpoints(&mut self, session: SessionId) -> Result<Vec<Checkpoint>> {
        let tenant = self.tenant;
        newest(self.connection(), tenant, session).await
    }

    /// Holds off the rest of the session's live box; `None` when it has none.
    pub async fn heartbeat(&mut self, session: SessionId) -> Result<Option<Heartbeat>> {
        let tenant = self.tenant.uuid();
        let row: Option<(Uuid, bool)> = sqlx::query_as(
            "with before as (
                select sandbox_id,
                       coalesce(heartbeat_said_at < now() - $3 * interval '1 second', true) as is_due
                from sandbox
                where tenant_id = $1 and session_id = $2 and state in ('live', 'frozen')
                for update
             )
             update sandbox b
             set heartbeat_at = now(),
                 heartbeat_said_at = case when before.is_due then now() else b.heartbeat_said_at end
             from before
             where b.tenant_id = $1 and b.sandbox_id = before.sandbox_id
             returning b.sandbox_id, before.is_due",
        )
        .bind(tenant)
        .bind(session.uuid())
        .bind(limit::HEARTBEAT_SAID_EVERY.as_secs_f64())
        .fetch_optional(self.connection())
        .await?;
        Ok(row.map(|(sandbox, is_due)| Heartbeat { sandbox: Id::from_uuid(sandbox), is_due }))
    }
}
