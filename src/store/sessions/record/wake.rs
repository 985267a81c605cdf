//! Fenced append of one record that may wake a session (the end or the wait of a child's turn, and a wait for children), or
//! that has a snapshot.
//!
//! In a transaction of its own, because the wakes are decided under the lock on a job (see `child_session`), and the `seq`
//! of a snapshot is that of its event. Few sessions have a parent and few appends a snapshot, so the statement of all
//! others stays short.

use super::{Record, Recorded, Row, fold::Member};
use crate::{
    domain::{
        EventId,
        event::{Body, Draft},
    },
    store::{Error, Result, Store, child_session, connection::Connection, snapshot},
};

impl Record {
    /// Returns whether it may make the job of a session above ready, or its own.
    pub fn may_wake(&self) -> bool {
        self.events.iter().any(|event| match &event.draft.body {
            Body::TurnWaiting { session_ids, .. } => self.parent.is_some() || !session_ids.is_empty(),
            Body::TurnCompleted(_) => self.parent.is_some(),
            _ => false,
        })
    }

    /// Returns whether it is written in a transaction of its own, and in no batch.
    pub fn is_apart(&self) -> bool {
        self.snapshot.is_some() || self.may_wake()
    }
}

impl Member<'_> {
    /// Writes the record with its snapshot.
    async fn write(&self, connection: &mut Connection) -> Result<Row> {
        let row = self.write_events(&mut *connection).await?;
        if let (Some(base), Some(new)) = (row.base, &self.record.snapshot) {
            let fence = self.record.fence;
            let event = self.appended(base, new.event)?;
            snapshot::insert(connection, (fence.org, fence.session), event, new).await?;
        }
        Ok(row)
    }

    /// Returns an event of the record, with its `seq` after `base`.
    fn appended(&self, base: i64, event: EventId) -> Result<(i64, &Draft)> {
        let mut drafts = (base + 1..).zip(self.record.events.iter().map(|event| &event.draft));
        let missing = || Error::Corrupt("a snapshot whose event is not among those appended".to_owned());
        drafts.find(|(_, draft)| draft.id == event).ok_or_else(missing)
    }
}

impl Store {
    /// As [`Store::record`].
    pub(super) async fn record_apart(&self, member: &Member<'_>) -> Result<Recorded> {
        let Record { fence, parent, .. } = *member.record;
        let mut connection = self.append.begin().await?;
        let mut above = Vec::new();
        if let Some(parent) = parent.filter(|_| member.record.may_wake()) {
            // Session before jobs, as everywhere, and all jobs before the sums that the append changes.
            sqlx::query("select from session where org_id = $1 and session_id = $2 for update")
                .bind(fence.org.uuid())
                .bind(fence.session.uuid())
                .fetch_optional(&mut connection)
                .await?;
            above = child_session::lock_jobs_above(&mut connection, fence.org, parent).await?;
        }
        let recorded = member.write(&mut connection).await?.recorded();
        let Recorded::After { base, has_deliveries, .. } = recorded else { return Ok(recorded) };
        let mut woken = child_session::wake_above(&mut connection, fence.org, &above, fence.session).await?;
        if member.wait(|wait| !wait.sessions.is_empty()) == Some(true) {
            woken.extend(child_session::wake_settled(&mut connection, fence.org, fence.session).await?);
        }
        connection.commit().await?;
        Ok(Recorded::After { base, has_deliveries, woken })
    }
}
