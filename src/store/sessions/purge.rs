//! Hard deletion of a session, and its remaining data outside the database.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{
        Id, Timestamp,
        limit::{BLOB_PURGE_LAST_AFTER, BLOB_PURGE_REPEAT_AFTER, DELETION_EVENTS_AT_ONCE, REMOVAL_DAYS},
    },
    domain::{OrgId, Session, SessionId},
    store::{Result, Store, Tx, agent::snapshot},
};

/// A locked session that is being deleted.
#[derive(Clone, Debug)]
pub struct DeletedSession {
    pub id: SessionId,
    pub head: i64,
    key: Option<String>,
    has_parent: bool,
}

impl From<&Session> for DeletedSession {
    fn from(session: &Session) -> Self {
        let created = &session.created;
        let has_parent = created.parent_session_id.is_some();
        Self { id: session.id, head: session.head, key: created.key.clone(), has_parent }
    }
}

impl Tx {
    /// Locks and returns those of these sessions whose retention period is over and which have no open
    /// descendant. Omits sessions that another transaction has locked, and those whose parent it has: the deletion
    /// changes that row too, and waits for none.
    pub async fn lock_expired(&mut self, sessions: &[SessionId]) -> Result<Vec<DeletedSession>> {
        let org = self.org.uuid();
        let rows: Vec<(Uuid, i64, Option<String>, bool)> = sqlx::query_as(
            "with recursive below as (
                select parent_session_id as top, session_id, status
                from session
                where org_id = $1 and parent_session_id = any($2)
                union all
                select b.top, s.session_id, s.status
                from below b
                join session s on s.org_id = $1 and s.parent_session_id = b.session_id
             ), above as materialized (
                select p.session_id
                from session p
                where p.org_id = $1
                  and p.session_id in (
                      select parent_session_id from session where org_id = $1 and session_id = any($2)
                  )
                for update skip locked
             )
             select s.session_id, s.head, s.key, s.parent_session_id is not null
             from session s
             join org t on t.org_id = s.org_id
             where s.org_id = $1
               and s.session_id = any($2)
               and s.status = 'archived'
               and s.stopped_at < now() - make_interval(days => t.retention_days)
               and not exists (select from below b where b.top = s.session_id and b.status <> 'archived')
               and (s.parent_session_id is null
                    or s.parent_session_id in (select session_id from above)
                    or not exists (
                        select from session p where p.org_id = s.org_id and p.session_id = s.parent_session_id
                    ))
             order by s.session_id
             for update of s skip locked",
        )
        .bind(org)
        .bind(sessions.iter().map(|session| session.uuid()).collect::<Vec<_>>())
        .fetch_all(self.connection())
        .await?;
        let locked =
            |(id, head, key, has_parent)| DeletedSession { id: Id::from_uuid(id), head, key, has_parent };
        Ok(rows.into_iter().map(locked).collect())
    }

    /// Deletes locked sessions from every table. Their blobs, and the events of a long log, are left to the workers.
    ///
    /// The caller may remove the blobs at once.
    pub async fn purge_sessions(&mut self, sessions: &[DeletedSession]) -> Result<()> {
        let org = self.org.uuid();
        let ids: Vec<_> = sessions.iter().map(|session| session.id.uuid()).collect();
        let long: Vec<_> = sessions
            .iter()
            .filter(|session| session.head > DELETION_EVENTS_AT_ONCE)
            .map(|session| session.id.uuid())
            .collect();
        sqlx::query(concat!(
            "insert into purged_session_blobs (org_id, session_id, last_epoch, agent_id, model, parent_session_id)
             select s.org_id, s.session_id, coalesce(s.closed_epoch, s.epoch), s.agent_id, ",
            snapshot!("s"),
            " ->> 'model', s.parent_session_id
             from session s
             where s.org_id = $1 and s.session_id = any($2)
             on conflict do nothing"
        ))
        .bind(org)
        .bind(&ids)
        .execute(self.connection())
        .await?;
        sqlx::query("insert into deleted_log (org_id, session_id) select $1, unnest($2::uuid[])")
            .bind(org)
            .bind(&long)
            .execute(self.connection())
            .await?;
        sqlx::query("insert into removal (org_id, session_id) select $1, unnest($2::uuid[])")
            .bind(org)
            .bind(&ids)
            .execute(self.connection())
            .await?;
        for session in sessions.iter().filter(|session| session.has_parent) {
            self.add_usage_to_parent(session.id).await?;
        }
        // A key of its own may name another session now, and so may the keys of its messages.
        sqlx::query(
            "delete from idempotency
             where org_id = $1
               and (scope = any($2) or (scope = 'session' and key = any($3)))",
        )
        .bind(org)
        .bind(
            sessions
                .iter()
                .flat_map(|session| {
                    let id = session.id;
                    [format!("steer/{id}"), format!("steer/{id}/token"), format!("child/{id}")]
                })
                .collect::<Vec<_>>(),
        )
        .bind(sessions.iter().filter_map(|session| session.key.clone()).collect::<Vec<_>>())
        .execute(self.connection())
        .await?;
        sqlx::query("select sojourn_delete_sessions($1, $2, $3)")
            .bind(org)
            .bind(&ids)
            .bind(&long)
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

/// A removal of the blobs of a deleted session.
///
/// The request that deletes the session removes them too, if its process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobRemoval {
    /// When every process has seen the deletion. A worker may have written a blob meanwhile.
    First,
    /// When no process can be left that was frozen before it saw the deletion.
    Last,
}

impl BlobRemoval {
    /// Returns the time between the deletion of the session and this removal.
    fn delay(self) -> Duration {
        match self {
            Self::First => BLOB_PURGE_REPEAT_AFTER,
            Self::Last => BLOB_PURGE_LAST_AFTER,
        }
    }
}

macro_rules! purged_session_blobs {
    ($condition:literal) => {
        concat!(
            "select org_id, created_at as at, session_id
             from purged_session_blobs
             where ",
            $condition,
            " created_at < now() - $1 * interval '1 second'
               and ($2::timestamptz is null or (created_at, org_id, session_id) > ($2, $3, $4))
             order by created_at, org_id, session_id
             limit $5"
        )
    };
}

impl Store {
    /// Returns sessions that were deleted a while ago and whose blobs may still exist, the oldest first.
    ///
    /// By the indexes `purged_session_blobs_pending` and `purged_session_blobs_age`.
    pub async fn purged_session_blobs(
        &self,
        removal: BlobRemoval,
        after: Option<ScanPosition>,
        limit: i64,
    ) -> Result<Vec<Scanned>> {
        let sql = match removal {
            BlobRemoval::First => purged_session_blobs!("removed_at is null and"),
            BlobRemoval::Last => purged_session_blobs!(""),
        };
        let rows: Vec<Row> = sqlx::query_as(sql)
            .bind(removal.delay().as_secs_f64())
            .bind(after.map(|after| after.at))
            .bind(after.map(|after| after.org))
            .bind(after.map(|after| after.id))
            .bind(limit)
            .fetch_all(&self.system)
            .await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Records that no blob of a session is left.
    pub async fn blobs_removed(&self, removal: BlobRemoval, org: OrgId, session: SessionId) -> Result<()> {
        let sql = match removal {
            BlobRemoval::First => {
                "update purged_session_blobs set removed_at = now() where org_id = $1 and session_id = $2"
            }
            BlobRemoval::Last => "delete from purged_session_blobs where org_id = $1 and session_id = $2",
        };
        sqlx::query(sql).bind(org.uuid()).bind(session.uuid()).execute(&self.system).await?;
        Ok(())
    }

    /// Deletes at most `batch` rows that deleted sessions have left in `event`, `delivery` and `delivery_attempt`; returns
    /// how many.
    ///
    /// By the index `deleted_log_age`.
    pub async fn delete_session_rows(&self, batch: i64) -> Result<u64> {
        let mut deleted = 0;
        while deleted < batch {
            let step: Option<i64> = sqlx::query_scalar(
                "with step as (
                    select l.org_id, l.session_id, sojourn_delete_session_rows(l.org_id, l.session_id, $1) as deleted
                    from (
                        select org_id, session_id
                        from deleted_log
                        order by created_at
                        limit 1
                        for update skip locked
                    ) l
                 ), done as (
                    delete from deleted_log l
                    using step
                    where step.deleted < $1 and l.org_id = step.org_id and l.session_id = step.session_id
                 )
                 select deleted from step",
            )
            .bind(batch - deleted)
            .fetch_optional(&self.system)
            .await?;
            let Some(step) = step else { break };
            deleted += step;
        }
        Ok(deleted.cast_unsigned())
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
