//! Rows of segments, and the move of events from rows to segments.

use uuid::Uuid;

use super::object::Segment;
use crate::{
    base::{Id, Timestamp, limit::PROCESS_HEARTBEAT_TTL},
    domain::{OrgId, SessionId},
    store::{
        Result, Store,
        purge::{ScanPosition, Scanned},
    },
};

/// Rows of a log that have not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmoved {
    /// `seq` of the first row.
    pub from: i64,
    /// Last `seq` of the segment that begins there, if a worker ended before it deleted the rows.
    pub segment_to: Option<i64>,
}

/// Segments of `$1`, `$2` with events after `$3` and before `$4`, by the primary key.
///
/// Without those whose rows exist: rows win, and they are deleted all at once.
pub(super) const SEGMENTS: &str = "
    select from_seq, to_seq, digest, bytes, types
    from log_segment
    where org_id = $1
      and session_id = $2
      and to_seq > $3
      and from_seq < $4
      and not exists (
          select from event
          where org_id = $1 and session_id = $2 and seq = from_seq
      )
    order by from_seq";

impl Store {
    /// Returns sessions that were archived at least this many days ago and whose events are still rows, the oldest
    /// first. By the index `session_events_to_move`.
    ///
    /// Returns none while a process lives that does not read segments.
    pub async fn sessions_to_move(
        &self,
        archived_days: i32,
        after: Option<ScanPosition>,
        limit: i64,
    ) -> Result<Vec<Scanned>> {
        let rows: Vec<(Uuid, Timestamp, Uuid)> = sqlx::query_as(
            "select s.org_id, s.stopped_at, s.session_id
             from session s
             where s.status = 'archived'
               and s.events_moved_at is null
               and s.stopped_at < now() - make_interval(days => $1)
               and ($2::timestamptz is null or (s.stopped_at, s.org_id, s.session_id) > ($2, $3, $4))
               and not exists (select from org o where o.org_id = s.org_id and o.deleted_at is not null)
               and not exists (
                   select from process where not reads_segments and seen_at >= now() - $6 * interval '1 second'
               )
             order by s.stopped_at, s.org_id, s.session_id
             limit $5",
        )
        .bind(archived_days)
        .bind(after.map(|after| after.at))
        .bind(after.map(|after| after.org))
        .bind(after.map(|after| after.id))
        .bind(limit)
        .bind(PROCESS_HEARTBEAT_TTL.as_secs_f64())
        .fetch_all(&self.system)
        .await?;
        let scanned = |(org, at, id)| Scanned {
            org: Id::from_uuid(org),
            session: Id::from_uuid(id),
            position: ScanPosition { org, at, id },
        };
        Ok(rows.into_iter().map(scanned).collect())
    }

    /// Returns for how long the oldest events that have not moved have been past their time, in seconds. By the index
    /// `session_events_to_move`.
    pub async fn events_to_move_age(&self, archived_days: i32) -> Result<f64> {
        let age = sqlx::query_scalar(
            "select coalesce(greatest(extract(epoch from now() - make_interval(days => $1) - min(stopped_at)), 0), 0)::float8
             from session
             where status = 'archived' and events_moved_at is null",
        );
        Ok(age.bind(archived_days).fetch_one(&self.system).await?)
    }

    /// Returns the first rows of a log; `None` if it has none.
    pub async fn unmoved_events(&self, org: OrgId, session: SessionId) -> Result<Option<Unmoved>> {
        let row: Option<(i64, Option<i64>)> = sqlx::query_as(
            "select e.seq, s.to_seq
             from event e
             left join log_segment s on s.org_id = e.org_id and s.session_id = e.session_id and s.from_seq = e.seq
             where e.org_id = $1 and e.session_id = $2
             order by e.seq
             limit 1",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .fetch_optional(&self.system)
        .await?;
        Ok(row.map(|(from, segment_to)| Unmoved { from, segment_to }))
    }

    /// Adds a segment and deletes its rows, in one transaction. The object must be stored.
    ///
    /// Returns the number of rows, 0 if another worker deleted them; `None` if the session is not archived or was
    /// deleted.
    ///
    /// # Errors
    /// `Database` if the rows are not complete, or the segment does not follow the one before it.
    pub async fn move_to_segment(
        &self,
        org: OrgId,
        session: SessionId,
        segment: &Segment,
    ) -> Result<Option<u64>> {
        let mut tx = self.system.begin().await?;
        let locked = sqlx::query(
            "select from session
             where org_id = $1 and session_id = $2 and status = 'archived'
             for no key update",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .fetch_optional(&mut tx)
        .await?;
        if locked.is_none() {
            return Ok(None);
        }
        sqlx::query(
            "insert into log_segment (org_id, session_id, from_seq, to_seq, digest, bytes, types)
             values ($1, $2, $3, $4, $5, $6, $7)
             on conflict do nothing",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(segment.from_seq)
        .bind(segment.to_seq)
        .bind(&segment.digest)
        .bind(segment.bytes)
        .bind(&segment.types)
        .execute(&mut tx)
        .await?;
        let deleted: i64 = sqlx::query_scalar("select sojourn_delete_moved_events($1, $2, $3, $4, $5)")
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(segment.from_seq)
            .bind(segment.to_seq)
            .bind(&segment.digest)
            .fetch_one(&mut tx)
            .await?;
        tx.commit().await?;
        Ok(Some(deleted.cast_unsigned()))
    }

    /// Records that all events of an archived session have moved, unless it has a row.
    pub async fn events_moved(&self, org: OrgId, session: SessionId) -> Result<()> {
        sqlx::query(
            "update session
             set events_moved_at = now()
             where org_id = $1
               and session_id = $2
               and status = 'archived'
               and not exists (select from event where org_id = $1 and session_id = $2)",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .execute(&self.system)
        .await?;
        Ok(())
    }
}
