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
    /// Returns whether it may make the job of its parent ready, or its own.
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
        let recorded = member.write(&mut connection).await?.recorded();
        let Recorded::After { base, has_deliveries, .. } = recorded else { return Ok(recorded) };
        let mut woken = None;
        if member.wait(|wait| !wait.sessions.is_empty()) == Some(true) {
            woken = child_session::wake_settled(&mut connection, fence.org, fence.session).await?;
        }
        if let Some(parent) = parent {
            let parent =
                child_session::wake_parent(&mut connection, fence.org, parent, fence.session).await?;
            woken = woken.or(parent);
        }
        connection.commit().await?;
        Ok(Recorded::After { base, has_deliveries, woken })
    }
}
