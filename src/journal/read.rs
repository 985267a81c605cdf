//! Reads of a log as domain events, with spilled bodies loaded from their blobs.
//!
//! A log may be longer than the memory of a process: pages are small, one complete body is in memory at a time,
//! and only the types of events that a reader needs leave the database.

use std::collections::BTreeMap;

use super::{Error, Journal};
use crate::{
    base::limit::LOG_PAGE_ROWS,
    domain::{
        Body, Entry, Event, OrgId, SessionId,
        log_fold::{FOLDED, LogFold},
        registry::Tool,
        source::{PROGRESS, PinnedSource, Progress, SourceLog},
    },
};

impl Journal {
    /// Adds the events that follow a fold in the log. After an error, the fold has some of them.
    ///
    /// Returns whether the fold was begun again: it had an event that is not in the log, because the database has
    /// lost it.
    pub(super) async fn catch_up(
        &self,
        org: OrgId,
        session: SessionId,
        fold: &mut LogFold,
    ) -> Result<bool, Error> {
        let mut is_new = false;
        let mut last = fold.last();
        let mut after = last.map_or(0, |(seq, _)| seq - 1);
        loop {
            let page = self.store.read_events_of_types(org, session, after, &FOLDED, LOG_PAGE_ROWS).await?;
            let mut new = page.iter();
            // The first row is the last event of the fold.
            if let Some(last) = last.take()
                && new.next().map(|entry| (entry.seq, entry.id)) != Some(last)
            {
                tracing::warn!(session.id = %session, seq = last.0, "a fold is not of this log; reading all of the log");
                (*fold, after, is_new) = (LogFold::new(fold.objects()), 0, true);
                continue;
            }
            for entry in new {
                fold.take(&self.whole(org, entry).await?);
            }
            match page.last() {
                Some(entry) if page.len() as i64 == LOG_PAGE_ROWS => after = entry.seq,
                Some(_) | None => return Ok(is_new),
            }
        }
    }

    /// Passes the events of these types after `after` to `take`, in order.
    pub async fn each(
        &self,
        org: OrgId,
        session: SessionId,
        mut after: i64,
        types: &[&'static str],
        take: &mut (dyn FnMut(Event) + Send),
    ) -> Result<(), Error> {
        loop {
            let page = self.store.read_events_of_types(org, session, after, types, LOG_PAGE_ROWS).await?;
            for entry in &page {
                take(self.whole(org, entry).await?);
                after = entry.seq;
            }
            if (page.len() as i64) < LOG_PAGE_ROWS {
                return Ok(());
            }
        }
    }

    /// Returns the first result of `find` for the events of these types, the newest event first.
    pub async fn newest<T>(
        &self,
        org: OrgId,
        session: SessionId,
        types: &[&'static str],
        mut find: impl FnMut(&Event) -> Option<T> + Send,
    ) -> Result<Option<T>, Error> {
        let mut before = i64::MAX;
        loop {
            let page = self.store.read_events_before(org, session, before, types, LOG_PAGE_ROWS).await?;
            for entry in &page {
                if let Some(found) = find(&self.whole(org, entry).await?) {
                    return Ok(Some(found));
                }
                before = entry.seq;
            }
            if (page.len() as i64) < LOG_PAGE_ROWS {
                return Ok(None);
            }
        }
    }

    /// Returns the tools that callers registered with a session, the latest registration of each name, by name.
    pub async fn registered_tools(&self, org: OrgId, session: SessionId) -> Result<Vec<Tool>, Error> {
        let mut tools = BTreeMap::new();
        self.each(org, session, 0, &["tool.registered"], &mut |event| {
            if let Body::ToolRegistered(tool) = event.draft.body {
                tools.insert(tool.name.clone(), tool);
            }
        })
        .await?;
        Ok(tools.into_values().collect())
    }

    /// Returns the clone progress of a session's sources. Of a long log it reads what the stored fold has not.
    pub async fn sources(
        &self,
        org: OrgId,
        session: SessionId,
        sources: &[PinnedSource],
    ) -> Result<Progress, Error> {
        let fold = self.load_fold(org, session).await?;
        let (after, mut log) =
            fold.map_or((0, SourceLog::default()), |fold| (fold.seq(), fold.sources().clone()));
        self.each(org, session, after, &PROGRESS, &mut |event| log.take(&event)).await?;
        Ok(log.progress(sources))
    }

    /// Decodes one event with its complete body. If that is lost, with the truncated one and a marker.
    pub(super) async fn whole(&self, org: OrgId, entry: &Entry) -> Result<Event, Error> {
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
