//! Sandboxes as rows: written before the box exists, ended after it is gone.

use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store};
use crate::{
    base::Id,
    domain::{SandboxId, SessionId, TenantId},
};

/// A box that should exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSandbox {
    pub tenant: TenantId,
    pub session: SessionId,
    pub sandbox: SandboxId,
    pub node: Uuid,
    /// The log says that it is there.
    pub is_announced: bool,
}

#[derive(FromRow)]
struct Row {
    tenant_id: Uuid,
    session_id: Uuid,
    sandbox_id: Uuid,
    node_id: Uuid,
    is_announced: bool,
}

impl From<Row> for LiveSandbox {
    fn from(row: Row) -> Self {
        Self {
            tenant: Id::from_uuid(row.tenant_id),
            session: Id::from_uuid(row.session_id),
            sandbox: Id::from_uuid(row.sandbox_id),
            node: row.node_id,
            is_announced: row.is_announced,
        }
    }
}

impl Store {
    /// The session's live box, by the unique index `sandbox_live`.
    pub async fn live_sandbox(&self, tenant: TenantId, session: SessionId) -> Result<Option<LiveSandbox>> {
        let row: Option<Row> = sqlx::query_as(
            "select tenant_id, session_id, sandbox_id, node_id, is_announced
             from sandbox
             where tenant_id = $1 and session_id = $2 and state <> 'ended'",
        )
        .bind(tenant.uuid())
        .bind(session.uuid())
        .fetch_optional(&self.system)
        .await?;
        Ok(row.map(Into::into))
    }

    /// The row before the box. Ties the session's jobs to the box's node. Returns
    /// whether `epoch` still holds the session: an archive finds each box's row, or
    /// the box is not made.
    ///
    /// # Errors
    /// `Conflict("sandbox_live")` when the session has one already.
    pub async fn begin_sandbox(&self, sandbox: LiveSandbox, epoch: i64) -> Result<bool> {
        let done = sqlx::query(
            "with held as (
                select session_id
                from session
                where tenant_id = $1 and session_id = $3 and epoch = $5 and status <> 'archived'
                for share
             ), tied as (
                update job j set node_id = $4 from held where j.tenant_id = $1 and j.session_id = held.session_id
             )
             insert into sandbox (tenant_id, sandbox_id, session_id, node_id, state)
             select $1, $2, session_id, $4, 'live' from held",
        )
        .bind(sandbox.tenant.uuid())
        .bind(sandbox.sandbox.uuid())
        .bind(sandbox.session.uuid())
        .bind(sandbox.node)
        .bind(epoch)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Notes that the log says that the box is there.
    pub async fn announced_sandbox(&self, tenant: TenantId, sandbox: SandboxId) -> Result<()> {
        sqlx::query("update sandbox set is_announced = true where tenant_id = $1 and sandbox_id = $2")
            .bind(tenant.uuid())
            .bind(sandbox.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// The box is gone; any node may serve the session again.
    pub async fn end_sandbox(&self, tenant: TenantId, session: SessionId, sandbox: SandboxId) -> Result<()> {
        sqlx::query(
            "with untied as (
                update job set node_id = null where tenant_id = $1 and session_id = $2
             )
             update sandbox
             set state = 'ended', ended_at = coalesce(ended_at, now())
             where tenant_id = $1 and sandbox_id = $3",
        )
        .bind(tenant.uuid())
        .bind(session.uuid())
        .bind(sandbox.uuid())
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Every box that should exist on a node. The reaper's list; read rarely.
    pub async fn sandboxes_of_node(&self, node: Uuid) -> Result<Vec<LiveSandbox>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select tenant_id, session_id, sandbox_id, node_id, is_announced
             from sandbox
             where node_id = $1 and state <> 'ended'",
        )
        .bind(node)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Which of these sessions are closed or unknown: their disks may go.
    pub async fn closed_sessions(&self, sessions: &[(TenantId, SessionId)]) -> Result<Vec<SessionId>> {
        let (tenants, ids): (Vec<_>, Vec<_>) =
            sessions.iter().map(|(tenant, session)| (tenant.uuid(), session.uuid())).unzip();
        let rows: Vec<(Uuid,)> = sqlx::query_as(
            "select wanted.session_id
             from unnest($1::uuid[], $2::uuid[]) as wanted (tenant_id, session_id)
             left join session s using (tenant_id, session_id)
             where s.session_id is null or s.status = 'archived'",
        )
        .bind(tenants)
        .bind(ids)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(|(session,)| Id::from_uuid(session)).collect())
    }
}
