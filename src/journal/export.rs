//! Export and import of whole sessions.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    Error, Journal, Unit,
    spill::{pack, take_contents},
};
use crate::{
    base::limit::{APPEND_EVENTS_MAX, EXPORT_CHUNK_BYTES, LOG_PAGE_ROWS},
    domain::{
        Entry, Level, OrgId, Session,
        decide::Stamp,
        transcript::{self, Transcript},
    },
    store::{audit::Act, command::Change, creation::Creation, log::Range, notification::Notification},
};

/// Streams a session's export, some lines at a time. Its memory does not depend on the length of the log.
pub struct Export {
    journal: Journal,
    org: OrgId,
    session: Session,
    /// `seq` of the last event in the lines so far.
    after: i64,
    /// Events that were read and have no line yet.
    page: VecDeque<Entry>,
    hash: Sha256,
    is_over: bool,
}

impl Journal {
    /// Starts the export of a session at its current head. Later events are not included.
    pub fn export(&self, org: OrgId, session: Session) -> Export {
        let (page, hash) = (VecDeque::new(), Sha256::new());
        Export { journal: self.clone(), org, session, after: 0, page, hash, is_over: false }
    }
}

impl Export {
    /// Returns the next lines; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let mut text = if self.after == 0 { transcript::head(&self.session) } else { String::new() };
        // Complete bodies are read one by one.
        while text.len() < EXPORT_CHUNK_BYTES && self.after < self.session.head {
            let entry = self.next_entry().await?;
            text.push_str(&transcript::line(&self.journal.whole(self.org, &entry).await?));
            self.after = entry.seq;
        }
        self.hash.update(text.as_bytes());
        if self.after >= self.session.head {
            self.is_over = true;
            let events = usize::try_from(self.session.head).unwrap_or_default();
            text.push_str(&transcript::tail(events, &self.hash.clone().finalize().into()));
        }
        Ok(Some(text.into()))
    }

    async fn next_entry(&mut self) -> Result<Entry, Error> {
        if self.page.is_empty() {
            let (after, level) = (self.after, Level::Internal);
            let range = Range { after, level, kind: None, turn: None, limit: LOG_PAGE_ROWS };
            self.page = self.journal.store.read_events(self.org, self.session.id, &range).await?.into();
        }
        // The session was deleted during the export. A file without its last line is known to be truncated.
        self.page.pop_front().ok_or_else(|| crate::store::Error::NotFound.into())
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
        let change = Change {
            session: &session,
            turns: &turns,
            base: session.head,
            events: &[],
            agent_snapshot: None,
            is_due: false,
        };
        self.tx.write_back(&change).await?;
        self.tx.write_imported_usage(&session).await?;
        for events in log.chunks(APPEND_EVENTS_MAX) {
            let drafts = events.iter().map(|event| event.draft.clone()).collect();
            let mut packed = pack(org, session.id, drafts)?;
            self.contents.extend(take_contents(org, session.id, &mut packed));
            let times: Vec<_> = events.iter().map(|event| event.ts).collect();
            self.tx.append_imported(session.id, events[0].seq - 1, &times, &packed).await?;
            self.note_steers(session.id, events).await?;
        }
        let details = json!({ "events": session.head });
        let (id, target) = (stamp.origin.id(), Some(session.id.to_string()));
        let act = Act { id, actor: &stamp.actor, action: "session.imported", target, details };
        self.tx.record_audit(&act).await?;
        self.notification(Notification::Log(session.id));
        self.notification(Notification::List(org));
        Ok(session)
    }
}
