//! Reads of a log as domain events, with spilled bodies loaded from their blobs.

use super::{Error, Journal};
use crate::{
    base::limit::HISTORY_PAGE_ROWS,
    domain::{
        Entry, Event, Level, OrgId, SessionId,
        source::{PinnedSource, Progress, source_progress},
    },
    store::event::Range,
};

impl Journal {
    /// Reads all events of a session after `after`.
    pub async fn log(&self, org: OrgId, session: SessionId, mut after: i64) -> Result<Vec<Event>, Error> {
        let mut log = Vec::new();
        loop {
            let page = self.page(org, session, after, HISTORY_PAGE_ROWS).await?;
            let Some(last) = page.last() else { return Ok(log) };
            after = last.seq;
            let is_last = (page.len() as i64) < HISTORY_PAGE_ROWS;
            log.extend(page);
            if is_last {
                return Ok(log);
            }
        }
    }

    /// Returns the clone progress of a session's sources.
    pub async fn sources(
        &self,
        org: OrgId,
        session: SessionId,
        sources: &[PinnedSource],
    ) -> Result<Progress, Error> {
        let mut found = self.events_of_kind(org, session, "source.*").await?;
        found.extend(self.events_of_kind(org, session, "sandbox.files_lost").await?);
        found.sort_by_key(|event| event.seq);
        Ok(source_progress(sources, &found))
    }

    async fn events_of_kind(&self, org: OrgId, session: SessionId, kind: &str) -> Result<Vec<Event>, Error> {
        let (mut log, mut after) = (Vec::new(), 0);
        loop {
            let (level, kind) = (Level::Internal, Some(kind.to_owned()));
            let range = Range { after, level, kind, turn: None, limit: HISTORY_PAGE_ROWS };
            let entries = self.store.read_events(org, session, &range).await?;
            let Some(last) = entries.last() else { return Ok(log) };
            after = last.seq;
            for entry in &entries {
                log.push(self.whole(org, entry).await?);
            }
        }
    }

    /// Reads a page of events after `after`; empty at the end of the log.
    pub(super) async fn page(
        &self,
        org: OrgId,
        session: SessionId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Event>, Error> {
        let range = Range { after, level: Level::Internal, kind: None, turn: None, limit };
        let entries = self.store.read_events(org, session, &range).await?;
        let mut page = Vec::with_capacity(entries.len());
        for entry in &entries {
            page.push(self.whole(org, entry).await?);
        }
        Ok(page)
    }

    /// Decodes one event with its complete body. If that is lost, with the truncated one and a marker.
    async fn whole(&self, org: OrgId, entry: &Entry) -> Result<Event, Error> {
        let corrupt = |error: &dyn std::fmt::Display| crate::store::Error::Corrupt(error.to_string());
        let Some(key) = &entry.content_ref else {
            return entry.event(None).map_err(|error| corrupt(&error).into());
        };
        let Some(content) = self.content(org, entry.session, entry.id, key).await? else {
            metrics::counter!("sojourn_blobs_lost_total", "kind" => "event").increment(1);
            tracing::error!(session.id = %entry.session, event.id = %entry.id, "the complete body of an event is missing");
            let mut event = entry.event(None).map_err(|error| corrupt(&error))?;
            event.draft.body.mark_truncated();
            return Ok(event);
        };
        let text = std::str::from_utf8(&content).map_err(|error| corrupt(&error))?;
        entry.event(Some(text)).map_err(|error| corrupt(&error).into())
    }
}
