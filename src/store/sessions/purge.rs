//! Hard deletion of a session, and its remaining data outside the database.

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{
        Id, Timestamp,
        limit::{BLOB_PURGE_REPEAT_AFTER, REMOVAL_DAYS},
    },
    domain::{OrgId, Session, SessionId},
    store::{Result, Store, Tx},
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

/// The row after which the next page of a scan begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScanPosition {
    pub(in crate::store) org: Uuid,
    pub(in crate::store) at: Timestamp,
    pub(in crate::store) id: Uuid,
}

/// A session that a scan returned, and its position.
#[derive(Clone, Copy, Debug)]
pub struct Scanned {
    pub org: OrgId,
    pub session: SessionId,
    pub position: ScanPosition,
}

impl Store {
    /// Returns sessions that were deleted a while ago and whose blobs may still exist, the oldest first.
    ///
    /// A worker that did not know of the deletion may have written a blob after the first removal. By the index
    /// `purged_session_blobs_age`.
    pub async fn purged_session_blobs(
        &self,
        after: Option<ScanPosition>,
        limit: i64,
    ) -> Result<Vec<Scanned>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select org_id, created_at as at, session_id
             from purged_session_blobs
             where created_at < now() - $1 * interval '1 second'
               and ($2::timestamptz is null or (created_at, org_id, session_id) > ($2, $3, $4))
             order by created_at, org_id, session_id
             limit $5",
        )
        .bind(BLOB_PURGE_REPEAT_AFTER.as_secs_f64())
        .bind(after.map(|after| after.at))
        .bind(after.map(|after| after.org))
        .bind(after.map(|after| after.id))
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(Into::into).collect())
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

    /// Returns archived sessions whose organization's retention period is over, by organization, the oldest
    /// first. By the index `session_archived`.
    pub async fn expired_sessions(&self, after: Option<ScanPosition>, limit: i64) -> Result<Vec<Scanned>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select t.org_id, s.stopped_at as at, s.session_id
             from org t
             cross join lateral (
                 select s.stopped_at, s.session_id
                 from session s
                 where s.org_id = t.org_id
                   and s.status = 'archived'
                   and s.stopped_at < now() - make_interval(days => t.retention_days)
                   and (t.org_id is distinct from $1 or (s.stopped_at, s.session_id) > ($2, $3))
                   and not exists (
                       select from session c
                       where c.org_id = s.org_id
                         and c.parent_session_id = s.session_id
                         and c.status <> 'archived'
                   )
                 order by s.stopped_at, s.session_id
                 limit $4
             ) s
             where t.retention_days is not null and t.deleted_at is null and ($1::uuid is null or t.org_id >= $1)
             order by t.org_id, s.stopped_at, s.session_id
             limit $4",
        )
        .bind(after.map(|after| after.org))
        .bind(after.map(|after| after.at))
        .bind(after.map(|after| after.id))
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Deletes one batch of removals older than `REMOVAL_DAYS`. By the index `removal_age`.
    ///
    /// Readers of a list that have not seen them begin with the whole list again.
    pub async fn delete_old_removals(&self, batch: i64) -> Result<u64> {
        let deleted: i64 = sqlx::query_scalar(
            "with old as (
                select org_id, removed_in, session_id
                from removal
                where removed_at < now() - make_interval(days => $1)
                order by removed_at
                limit $2
                for update skip locked
             ), deleted as (
                delete from removal r
                using old
                where r.org_id = old.org_id and r.removed_in = old.removed_in and r.session_id = old.session_id
                returning r.org_id, r.removed_in
             ), noted as (
                update org t
                set removals_deleted_to = greatest(coalesce(t.removals_deleted_to, d.last), d.last)
                from (select org_id, max(removed_in) as last from deleted group by org_id) d
                where t.org_id = d.org_id
             )
             select count(*) from deleted",
        )
        .bind(REMOVAL_DAYS)
        .bind(batch)
        .fetch_one(&self.system)
        .await?;
        Ok(deleted.cast_unsigned())
    }
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    at: Timestamp,
    session_id: Uuid,
}

impl From<Row> for Scanned {
    fn from(row: Row) -> Self {
        Self {
            org: Id::from_uuid(row.org_id),
            session: Id::from_uuid(row.session_id),
            position: ScanPosition { org: row.org_id, at: row.at, id: row.session_id },
        }
    }
}
