//! Export, import and deletion of whole sessions.

use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    Error, Journal, Unit,
    spill::{pack, take_contents},
};
use crate::{
    base::limit::{APPEND_EVENTS_MAX, HISTORY_PAGE_ROWS},
    domain::{
        Notice, OrgId, Session, SessionId,
        decide::{Rejection, Stamp},
        transcript::{self, Transcript},
    },
    store::{audit::Act, command::Change, creation::Creation, notification::Notification},
};

/// Streams a session's export, one page of lines at a time.
pub struct Export {
    journal: Journal,
    org: OrgId,
    session: Session,
    after: i64,
    hash: Sha256,
    is_over: bool,
}

impl Journal {
    /// Starts the export of a session at its current head. Later events are not included.
    pub fn export(&self, org: OrgId, session: Session) -> Export {
        Export { journal: self.clone(), org, session, after: 0, hash: Sha256::new(), is_over: false }
    }

    /// Removes the blobs of a deleted session.
    pub async fn remove_blobs(&self, org: OrgId, session: SessionId) -> Result<(), Error> {
        Ok(self.blobs.remove_all(&format!("{}/{}", org.uuid(), session.uuid())).await?)
    }
}

impl Export {
    /// Returns the next lines; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let mut text = if self.after == 0 { transcript::head(&self.session) } else { String::new() };
        let page = self.journal.page(self.org, self.session.id, self.after, HISTORY_PAGE_ROWS).await?;
        for event in page.iter().filter(|event| event.seq <= self.session.head) {
            text.push_str(&transcript::line(event));
            self.after = event.seq;
        }
        self.hash.update(text.as_bytes());
        if page.is_empty() && self.after < self.session.head {
            // The session was deleted during the export. A file without its last line is known to
            // be truncated.
            return Err(crate::store::Error::NotFound.into());
        }
        if self.after >= self.session.head {
            self.is_over = true;
            let events = usize::try_from(self.session.head).unwrap_or_default();
            text.push_str(&transcript::tail(events, &self.hash.clone().finalize().into()));
        }
        Ok(Some(text.into()))
    }
}

impl Unit {
    /// Stores a session that was read from an export file.
    ///
    /// Its old events are not sent to webhooks, and its usage is not billed.
    pub async fn import(&mut self, read: Transcript, stamp: &Stamp) -> Result<Session, Error> {
        let Transcript { session, turns, log } = read;
        let org = self.tx.org();
        let creation = Creation { session, events: Vec::new(), token: None, kept: None };
        let session = self.create_row(creation).await?.session;
        let change =
            Change { session: &session, ended: &turns, base: session.head, events: &[], is_due: false };
        self.tx.write_back(&change).await?;
        self.tx.write_imported_usage(&session).await?;
        for events in log.chunks(APPEND_EVENTS_MAX) {
            let drafts = events.iter().map(|event| event.draft.clone()).collect();
            let mut packed = pack(org, session.id, drafts)?;
            self.contents.extend(take_contents(org, session.id, &mut packed));
            let times: Vec<_> = events.iter().map(|event| event.ts).collect();
            self.tx.append_imported(session.id, events[0].seq - 1, &times, &packed).await?;
        }
        let details = json!({ "events": session.head });
        self.record_audit("session.imported", session.id, details, stamp).await?;
        self.notification(Notification::Log(session.id));
        self.notification(Notification::List(org));
        Ok(session)
    }

    /// Deletes a session and all its data. Writes an audit entry and notifies the organization's
    /// webhooks.
    ///
    /// # Errors
    /// `Store(NotFound)` when this organization has no such session. `Rejected` while a descendant
    /// is open, because the session's limits apply to it.
    pub async fn delete(&mut self, id: SessionId, stamp: &Stamp, reason: &'static str) -> Result<(), Error> {
        let session = self.tx.lock_session(id).await?;
        if self.tx.has_open_descendants(id).await? {
            return Err(Rejection::OpenDescendants.into());
        }
        self.tx.purge_session(&session).await?;
        let details = json!({ "events": session.head, "reason": reason });
        self.record_audit("session.deleted", id, details, stamp).await?;
        // After the purge, because the purge removes the session's deliveries.
        self.tx.tell(&Notice::session_deleted(id, stamp.actor.clone(), &stamp.origin)).await?;
        let org = self.tx.org();
        for notification in
            [Notification::Control, Notification::Delivery, Notification::Log(id), Notification::List(org)]
        {
            self.notification(notification);
        }
        Ok(())
    }

    async fn record_audit(
        &mut self,
        action: &'static str,
        target: SessionId,
        details: serde_json::Value,
        stamp: &Stamp,
    ) -> Result<(), Error> {
        let id = stamp.origin.id();
        let act = Act { id, actor: &stamp.actor, action, target: Some(target.to_string()), details };
        Ok(self.tx.record_audit(&act).await?)
    }
}
