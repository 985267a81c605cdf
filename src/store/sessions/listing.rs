//! Changes of an organization's session list since a reader's last read.
//!
//! Called by `stream`. A row stores the transaction that changed it last, and a reader keeps a
//! snapshot: every change that is not visible in that snapshot is new. Unlike a clock or a sequence
//! this misses no late commit and repeats nothing.

use serde::{Deserialize, Serialize};
use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Result, Tx};
use crate::{base::Id, domain::SessionId};

/// Transactions that a reader has seen, in Postgres's format: `xmin:xmax:in,progress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Snapshot(String);

/// A position in the changes of one read: by transaction, then by session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPosition {
    transaction: i64,
    session: SessionId,
}

/// A session that changed or was deleted.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub place: ListPosition,
    pub session: SessionId,
    pub is_removed: bool,
}

#[derive(FromRow)]
struct Row {
    transaction: i64,
    session_id: Uuid,
    is_removed: bool,
}

impl Snapshot {
    /// Returns whether the snapshot includes the change at `place`.
    pub fn saw(&self, place: ListPosition) -> bool {
        let mut parts = self.0.split(':');
        let mut bound = || parts.next().and_then(|part| part.parse::<i64>().ok());
        let (Some(begin), Some(end)) = (bound(), bound()) else { return false };
        let mut open = parts.next().unwrap_or_default().split(',');
        place.transaction < begin
            || (place.transaction < end
                && !open.any(|one| one.parse().is_ok_and(|one: i64| one == place.transaction)))
    }

    /// Returns whether this snapshot can come after `earlier`.
    ///
    /// It cannot if the database was restored from a dump, which restarts the transaction ids.
    pub fn can_follow(&self, earlier: &Self) -> bool {
        let end = |snapshot: &Self| snapshot.0.split(':').nth(1).and_then(|end| end.parse::<i64>().ok());
        end(self).zip(end(earlier)).is_some_and(|(own, other)| other <= own)
    }
}

impl Tx {
    /// Makes all reads of this transaction see one snapshot, and returns it. Call it before any
    /// read.
    pub async fn freeze(&mut self) -> Result<Snapshot> {
        sqlx::query("set transaction isolation level repeatable read, read only")
            .execute(self.connection())
            .await?;
        let (text,): (String,) =
            sqlx::query_as("select pg_current_snapshot()::text").fetch_one(self.connection()).await?;
        Ok(Snapshot(text))
    }

    /// Returns whether a removal that a reader did not see at this snapshot may have been deleted since.
    pub async fn lacks_removals_since(&mut self, seen: &Snapshot) -> Result<bool> {
        let org = self.org.uuid();
        let lacks: Option<bool> = sqlx::query_scalar(
            "select removals_deleted_to >= pg_snapshot_xmin($2::text::pg_snapshot) from org where org_id = $1",
        )
        .bind(org)
        .bind(&seen.0)
        .fetch_one(self.connection())
        .await?;
        Ok(lacks.unwrap_or_default())
    }

    /// Returns sessions whose listing changed between two snapshots, after a position; each once.
    ///
    /// By the index `session_listed` and the primary key of `removal`.
    pub async fn changes(
        &mut self,
        seen: &Snapshot,
        now: &Snapshot,
        beyond: Option<ListPosition>,
        limit: i64,
    ) -> Result<Vec<Change>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(
            "(
                select listed_in::text::bigint as transaction, session_id, false as is_removed
                from session
                where org_id = $1
                  and listed_in >= pg_snapshot_xmin($2::text::pg_snapshot)
                  and not pg_visible_in_snapshot(listed_in, $2::text::pg_snapshot)
                  and pg_visible_in_snapshot(listed_in, $3::text::pg_snapshot)
                  and ($4::bigint is null or (listed_in, session_id) > ($4::text::xid8, $5::uuid))
                order by listed_in, session_id
                limit $6
             )
             union all
             (
                select removed_in::text::bigint, session_id, true
                from removal
                where org_id = $1
                  and removed_in >= pg_snapshot_xmin($2::text::pg_snapshot)
                  and not pg_visible_in_snapshot(removed_in, $2::text::pg_snapshot)
                  and pg_visible_in_snapshot(removed_in, $3::text::pg_snapshot)
                  and ($4::bigint is null or (removed_in, session_id) > ($4::text::xid8, $5::uuid))
                order by removed_in, session_id
                limit $6
             )
             order by transaction, session_id
             limit $6",
        )
        .bind(org)
        .bind(&seen.0)
        .bind(&now.0)
        .bind(beyond.map(|place| place.transaction))
        .bind(beyond.map(|place| place.session.uuid()))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        let change = |row: Row| {
            let session = Id::from_uuid(row.session_id);
            let place = ListPosition { transaction: row.transaction, session };
            Change { place, session, is_removed: row.is_removed }
        };
        Ok(rows.into_iter().map(change).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_includes_transactions_committed_before_it() {
        let snapshot = Snapshot("100:105:100,102".to_owned());
        let saw =
            |transaction| snapshot.saw(ListPosition { transaction, session: Id::from_uuid(Uuid::nil()) });
        let seen: Vec<_> = (98..108).filter(|one| saw(*one)).collect();
        assert_eq!(seen, [98, 99, 101, 103, 104]);
    }

    #[test]
    fn a_restored_database_rejects_an_older_position() {
        let snapshot = |text: &str| Snapshot(text.to_owned());
        assert!(snapshot("7:9:8").can_follow(&snapshot("7:9:7")));
        assert!(!snapshot("7:9:").can_follow(&snapshot("7:10:")));
        assert!(!snapshot("not one").can_follow(&snapshot("7:9:")));
    }
}
