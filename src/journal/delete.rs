//! Deletion of sessions with all their data: one by a caller, many by retention.

use serde_json::json;

use super::{Error, Journal, Unit};
use crate::{
    domain::{
        Notice, OrgId, SessionId,
        decide::{Rejection, Stamp},
    },
    store::{self, audit::Act, notification::Notification, purge::DeletedSession},
};

impl Journal {
    /// Removes the blobs of a deleted session.
    pub async fn remove_blobs(&self, org: OrgId, session: SessionId) -> Result<(), Error> {
        Ok(self.blobs.remove_all(&format!("{}/{}", org.uuid(), session.uuid())).await?)
    }
}

impl Unit {
    /// Deletes a session and all its data. Writes an audit entry and notifies the organization's
    /// webhooks.
    ///
    /// # Errors
    /// `Store(NotFound)` when this organization has no such session. `Rejected` while a descendant
    /// is open, because the session's limits apply to it.
    pub async fn delete(&mut self, id: SessionId, stamp: &Stamp) -> Result<(), Error> {
        // The row above changes too, and sessions are locked from the top.
        let parent = self.tx.session(id).await?.created.parent_session_id;
        if let Some(parent) = parent {
            match self.tx.lock_session(parent).await {
                // It may have been deleted before.
                Ok(_) | Err(store::Error::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let session = self.tx.lock_session(id).await?;
        if self.tx.has_open_descendants(id).await? {
            return Err(Rejection::OpenDescendants.into());
        }
        let above = match parent {
            Some(parent) => self.tx.lock_jobs_above(parent).await?,
            None => Vec::new(),
        };
        self.delete_locked(&[DeletedSession::from(&session)], stamp, "asked").await?;
        self.wake_above(&above, id).await
    }

    /// Deletes those of these sessions whose retention period is over and which have no open
    /// descendant. Returns how many.
    pub async fn delete_expired(&mut self, sessions: &[SessionId], stamp: &Stamp) -> Result<usize, Error> {
        let expired = self.tx.lock_expired(sessions).await?;
        self.delete_locked(&expired, stamp, "retention").await?;
        Ok(expired.len())
    }

    async fn delete_locked(
        &mut self,
        sessions: &[DeletedSession],
        stamp: &Stamp,
        reason: &'static str,
    ) -> Result<(), Error> {
        if sessions.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = sessions.iter().map(|session| session.id).collect();
        self.notify_holders(&ids).await?;
        self.tx.purge_sessions(sessions).await?;
        let acts = sessions.iter().map(|session| Act {
            id: stamp.origin.id(),
            actor: &stamp.actor,
            action: "session.deleted",
            target: Some(session.id.to_string()),
            details: json!({ "events": session.head, "reason": reason }),
        });
        self.tx.record_acts(&acts.collect::<Vec<_>>()).await?;
        // After the purge, because the purge removes the sessions' deliveries.
        let notice = |session: &DeletedSession| {
            Notice::session_deleted(session.id, stamp.actor.clone(), &stamp.origin)
        };
        self.tx.tell(&sessions.iter().map(notice).collect::<Vec<_>>()).await?;
        self.has_due_delivery();
        self.notification(Notification::List(self.tx.org()));
        ids.into_iter().for_each(|id| self.notification(Notification::Log(id)));
        Ok(())
    }
}
