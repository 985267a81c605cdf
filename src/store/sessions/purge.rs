//! Hard deletion of a session, and its remaining data outside the database.

use uuid::Uuid;

use crate::store::{Result, Store, Tx};
use crate::{
    base::{
        Id,
        limit::{BLOB_PURGE_REPEAT_AFTER, HOUSEKEEPING_BATCH},
    },
    domain::{OrgId, Session, SessionId},
};

impl Tx {
    /// Deletes a locked session from every table.
    ///
    /// The caller removes its blobs; if the caller dies, the workers do.
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
        self.add_usage_to_parent(session.id).await?;
        // Its own key may name another session now, and so may the keys of its messages.
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
    /// Returns sessions that were deleted a while ago and whose blobs may still exist.
    ///
    /// A worker that did not know of the deletion may have written a blob after the first removal.
    pub async fn purged_session_blobs(&self) -> Result<Vec<(OrgId, SessionId)>> {
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "select org_id, session_id
             from purged_session_blobs
             where created_at < now() - $1 * interval '1 second'
             limit $2",
        )
        .bind(BLOB_PURGE_REPEAT_AFTER.as_secs_f64())
        .bind(HOUSEKEEPING_BATCH)
        .fetch_all(&self.system)
        .await?;
        Ok(pairs(rows))
    }

    /// Records that no blob of a session is left.
    pub async fn blobs_removed(&self, org: OrgId, session: SessionId) -> Result<()> {
        sqlx::query("delete from purged_session_blobs where org_id = $1 and session_id = $2")
            .bind(org.uuid())
            .bind(session.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// Returns archived sessions whose organization's retention period is over.
    ///
    /// Reads the archived sessions of organizations that set a retention, once a minute: an index
    /// on a session's status would slow down every append.
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
