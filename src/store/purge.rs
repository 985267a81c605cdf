//! The hard delete of a session, and what it leaves outside the database.

use uuid::Uuid;

use super::{Result, Store, Tx};
use crate::{
    base::{
        Id,
        limit::{HOUSEKEEPING_BATCH, PURGED_BLOBS_AFTER},
    },
    domain::{OrgId, Session, SessionId},
};

impl Tx {
    /// Deletes a locked session from every table. Its blobs are left to the caller and,
    /// should that one die, to the workers.
    pub async fn purge_session(&mut self, session: &Session) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into purged_session_blobs (org_id, session_id) values ($1, $2) on conflict do nothing",
        )
        .bind(org)
        .bind(session.id.uuid())
        .execute(self.connection())
        .await?;
        sqlx::query("insert into removal (org_id, session_id) values ($1, $2)")
            .bind(org)
            .bind(session.id.uuid())
            .execute(self.connection())
            .await?;
        self.hand_usage_on(session.id).await?;
        // Its own key may name another session now, and so may those of its messages.
        sqlx::query(
            "delete from idempotency
             where org_id = $1
               and (scope = $2 or (scope = 'session' and key = $3))",
        )
        .bind(org)
        .bind(format!("steer/{}", session.id))
        .bind(&session.created.key)
        .execute(self.connection())
        .await?;
        sqlx::query("select sojourn_purge($1, $2)")
            .bind(org)
            .bind(session.id.uuid())
            .execute(self.connection())
            .await?;
        Ok(())
    }
}

impl Store {
    /// Sessions that were deleted a while ago and whose blobs may still be there: a
    /// worker that did not know yet may have written one after the first removal.
    pub async fn purged_session_blobs(&self) -> Result<Vec<(OrgId, SessionId)>> {
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "select org_id, session_id
             from purged_session_blobs
             where created_at < now() - $1 * interval '1 second'
             limit $2",
        )
        .bind(PURGED_BLOBS_AFTER.as_secs_f64())
        .bind(HOUSEKEEPING_BATCH)
        .fetch_all(&self.system)
        .await?;
        Ok(pairs(rows))
    }

    /// Records that the blobs of a deleted session are removed.
    pub async fn blobs_removed(&self, org: OrgId, session: SessionId) -> Result<()> {
        sqlx::query("delete from purged_session_blobs where org_id = $1 and session_id = $2")
            .bind(org.uuid())
            .bind(session.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// Archived sessions whose organization does not keep them any longer.
    ///
    /// Reads the archived sessions of organizations that set a retention, once a
    /// minute: an index on a session's status would make every append dearer.
    pub async fn expired_sessions(&self, limit: i64) -> Result<Vec<(OrgId, SessionId)>> {
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "select s.org_id, s.session_id
             from org t
             join session s using (org_id)
             where t.retention_days is not null
               and t.deleted_at is null
               and s.status = 'archived'
               and s.updated_at < now() - make_interval(days => t.retention_days)
               and not exists (
                   select from session c
                   where c.org_id = s.org_id
                     and c.parent_session_id = s.session_id
                     and c.status <> 'archived'
               )
             limit $1",
        )
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(pairs(rows))
    }
}

fn pairs(rows: Vec<(Uuid, Uuid)>) -> Vec<(OrgId, SessionId)> {
    rows.into_iter().map(|(org, session)| (Id::from_uuid(org), Id::from_uuid(session))).collect()
}
