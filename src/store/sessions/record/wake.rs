//! Fenced append of one record that may wake a session: the end or the wait of a child's turn, and a wait for children.
//!
//! In a transaction of its own, because the wakes are decided under the lock on a job (see `child_session`). Few
//! sessions have a parent, so the statement of all others stays short.

use super::{Record, Recorded, fold::Member};
use crate::{
    domain::event::Body,
    store::{Result, Store, child_session},
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
}

impl Store {
    /// As [`Store::record`].
    pub(super) async fn record_and_wake(&self, member: &Member<'_>) -> Result<Recorded> {
        let Record { fence, parent, .. } = *member.record;
        let mut connection = self.append.begin().await?;
        let mut above = Vec::new();
        if let Some(parent) = parent {
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
