//! Checkpoint rows, and the idle time of sandboxes.

use std::time::Duration;

use sqlx::{FromRow, PgExecutor};
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    column::{count, json, uncount},
    record::{Fence, held},
};
use crate::{
    base::{Id, Timestamp, limit},
    domain::{CheckpointId, OperationId, OrgId, SandboxId, SessionId, operation::Answer},
};

/// Saved files of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub checkpoint: CheckpointId,
    /// The sandbox that the files were saved from.
    pub sandbox: SandboxId,
    /// SHA-256 of the blob, in hexadecimal.
    pub digest: String,
    pub bytes: u64,
    /// Created by a caller.
    pub is_retained: bool,
    pub created_at: Timestamp,
}

/// Idle time and state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// Time since the last turn, the last use by a caller or the last heartbeat.
    pub idle: Duration,
    /// A turn is running or could start, or an operation is open, so the sandbox may be needed at any time. A turn that
    /// waits for callers or for child sessions does not need it.
    pub is_wanted: bool,
    pub is_archived: bool,
    /// A caller paused the session.
    pub is_paused: bool,
}

#[derive(FromRow)]
struct Row {
    checkpoint_id: Uuid,
    sandbox_id: Uuid,
    digest: String,
    bytes: i64,
    is_retained: bool,
    created_at: Timestamp,
}

impl From<Row> for Checkpoint {
    fn from(row: Row) -> Self {
        Self {
            checkpoint: Id::from_uuid(row.checkpoint_id),
            sandbox: Id::from_uuid(row.sandbox_id),
            digest: row.digest,
            bytes: uncount(row.bytes),
            is_retained: row.is_retained,
            created_at: row.created_at,
        }
    }
}

impl Store {
    /// Returns the size of all checkpoints of an organization, in bytes.
    pub(crate) async fn checkpoint_bytes(&self, org: OrgId) -> Result<u64> {
        let bytes: i64 =
            sqlx::query_scalar("select coalesce(sum(bytes), 0)::bigint from checkpoint where org_id = $1")
                .bind(org.uuid())
                .fetch_one(&self.system)
                .await?;
        Ok(bytes.unsigned_abs())
    }

    /// Stores a checkpoint whose blob is written. Returns whether the fence holds.
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
             insert into checkpoint (org_id, session_id, checkpoint_id, sandbox_id, digest, bytes)
             select $1, session_id, $4, $5, $6, $7 from held",
        ))
        .bind(fence.org.uuid())
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

    /// Returns the newest checkpoint of a session, by the primary key.
    pub async fn latest_checkpoint(&self, org: OrgId, session: SessionId) -> Result<Option<Checkpoint>> {
        Ok(self.checkpoints(org, session).await?.into_iter().next())
    }

    /// Returns the checkpoints of a session, newest first.
    pub async fn checkpoints(&self, org: OrgId, session: SessionId) -> Result<Vec<Checkpoint>> {
        newest(&self.system, org, session).await
    }

    /// Marks a checkpoint as created by a caller. Returns whether the fence holds.
    pub async fn mark_checkpoint_manual(&self, fence: Fence, checkpoint: CheckpointId) -> Result<bool> {
        let done = sqlx::query(concat!(
            held!(),
            "
             update checkpoint c
             set is_retained = true
             from held
             where c.org_id = $1 and c.session_id = held.session_id and c.checkpoint_id = $4",
        ))
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(checkpoint.uuid())
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Restores a checkpoint and answers the operation that requested it.
    ///
    /// Both happen in one statement. The next sandbox of the session starts from this checkpoint.
    /// Returns whether the fence holds and the operation was still open.
    pub async fn restore_checkpoint(
        &self,
        fence: Fence,
        checkpoint: CheckpointId,
        operation: OperationId,
        answer: &Answer,
    ) -> Result<bool> {
        let done = sqlx::query(concat!(
            held!(),
            ", answered as (
                update operation o
                set answer = $6::json, started_at = coalesce(o.started_at, now()), completed_at = now()
                from held
                where o.org_id = $1 and o.session_id = held.session_id and o.operation_id = $5
                  and o.completed_at is null
                returning o.session_id
             ), restored as (
                update checkpoint c
                set restored_at = now()
                from answered
                where c.org_id = $1 and c.session_id = answered.session_id and c.checkpoint_id = $4
             ), last as (
                select b.sandbox_id
                from sandbox b
                join answered using (session_id)
                where b.org_id = $1 and (b.state <> 'ended' or b.is_announced)
                order by (b.state <> 'ended') desc, b.created_at desc
                limit 1
             ), left_behind as (
                update sandbox b
                set state = case when b.state = 'ended' then b.state else 'ending' end,
                    ending = 'restored',
                    checkpoint_id = $4
                from last
                where b.org_id = $1 and b.sandbox_id = last.sandbox_id
             )
             select from answered",
        ))
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(checkpoint.uuid())
        .bind(operation.uuid())
        .bind(json(answer))
        .fetch_optional(&self.system)
        .await?;
        Ok(done.is_some())
    }

    /// Deletes a checkpoint's row, after its blob.
    pub async fn delete_checkpoint_row(
        &self,
        org: OrgId,
        session: SessionId,
        checkpoint: CheckpointId,
    ) -> Result<()> {
        sqlx::query("delete from checkpoint where org_id = $1 and session_id = $2 and checkpoint_id = $3")
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(checkpoint.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// Returns the idle time of the session's live sandbox.
    pub async fn idle(&self, org: OrgId, session: SessionId) -> Result<Option<Idle>> {
        let row: Option<(f64, bool, bool, bool)> = sqlx::query_as(
            "select extract(epoch from now() - greatest(b.used_at, b.heartbeat_at, t.completed_at))::float8,
                    case
                        when s.running_turn_id is null then s.queued_turn_id is not null
                        -- What is queued behind a turn that waits waits, too.
                        else coalesce(r.state <> 'waiting', true)
                    end or exists (
                        select from operation o
                        where o.org_id = $1 and o.session_id = $2 and o.completed_at is null
                    ),
                    s.status = 'archived',
                    s.hold is not distinct from 'paused'
             from sandbox b
             join session s using (org_id, session_id)
             left join turn t
                 on t.org_id = s.org_id and t.session_id = s.session_id and t.turn_id = s.ended_turn_id
             left join turn r
                 on r.org_id = s.org_id and r.session_id = s.session_id and r.turn_id = s.running_turn_id
             where b.org_id = $1 and b.session_id = $2 and b.state <> 'ended'",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .fetch_optional(&self.system)
        .await?;
        let idle = |(seconds, is_wanted, is_archived, is_paused): (f64, bool, bool, bool)| Idle {
            idle: Duration::from_secs_f64(seconds.max(0.0)),
            is_wanted,
            is_archived,
            is_paused,
        };
        Ok(row.map(idle))
    }
}

/// A recorded heartbeat of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub sandbox: SandboxId,
    /// No heartbeat event was appended for a while, so one is due.
    pub is_due: bool,
}

/// By the primary key; returns at most `HOUSEKEEPING_BATCH` rows.
async fn newest(executor: impl PgExecutor<'_>, org: OrgId, session: SessionId) -> Result<Vec<Checkpoint>> {
    let rows: Vec<Row> = sqlx::query_as(
        "select checkpoint_id, sandbox_id, digest, bytes, is_retained, created_at
         from checkpoint
         where org_id = $1 and session_id = $2
         order by coalesce(restored_at, created_at) desc, checkpoint_id desc
         limit $3",
    )
    .bind(org.uuid())
    .bind(session.uuid())
    .bind(limit::HOUSEKEEPING_BATCH)
    .fetch_all(executor)
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

impl Tx {
    /// Returns the checkpoints of a session, newest first.
    pub async fn checkpoints(&mut self, session: SessionId) -> Result<Vec<Checkpoint>> {
        let org = self.org;
        newest(self.connection(), org, session).await
    }

    /// Records a heartbeat, which delays the freeze of the session's live sandbox.
    ///
    /// Returns `None` when the session has no live sandbox.
    pub async fn heartbeat(&mut self, session: SessionId) -> Result<Option<Heartbeat>> {
        let org = self.org.uuid();
        let row: Option<(Uuid, bool)> = sqlx::query_as(
            "with before as (
                select sandbox_id,
                       coalesce(heartbeat_logged_at < now() - $3 * interval '1 second', true) as is_due
                from sandbox
                where org_id = $1 and session_id = $2 and state in ('live', 'frozen')
                for update
             )
             update sandbox b
             set heartbeat_at = now(),
                 heartbeat_logged_at = case when before.is_due then now() else b.heartbeat_logged_at end
             from before
             where b.org_id = $1 and b.sandbox_id = before.sandbox_id
             returning b.sandbox_id, before.is_due",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(limit::HEARTBEAT_EVENT_INTERVAL.as_secs_f64())
        .fetch_optional(self.connection())
        .await?;
        Ok(row.map(|(sandbox, is_due)| Heartbeat { sandbox: Id::from_uuid(sandbox), is_due }))
    }
}
