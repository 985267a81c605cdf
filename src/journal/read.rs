//! Reading a log as the rules see it: typed, and whole where bodies spilled.

use super::{Error, Journal};
use crate::{
    base::limit::HISTORY_PAGE_ROWS,
    domain::{Event, Level, SessionId, TenantId},
    store::event::{Range, Stored},
};

impl Journal {
    /// The whole log of a session beyond `after`.
    pub async fn log(
        &self,
        tenant: TenantId,
        session: SessionId,
        mut after: i64,
    ) -> Result<Vec<Event>, Error> {
        let mut log = Vec::new();
        loop {
            let range =
                Range { after, level: Level::Internal, kind: None, turn: None, limit: HISTORY_PAGE_ROWS };
            let page = self.store.read_events(tenant, session, &range).await?;
            let Some(last) = page.last() else { return Ok(log) };
            after = last.seq;
            for stored in &page {
                log.push(self.whole(stored).await?);
            }
        }
    }

    /// One event with its whole body.
    async fn whole(&self, stored: &Stored) -> Result<Event, Error> {
        let Some(key) = &stored.content_ref else { return Ok(stored.event(None)?) };
        let content = self.blobs.get(key).await?;
        let text =
            std::str::from_utf8(&content).map_err(|error| crate::store::Error::Corrupt(error.to_string()))?;
        Ok(stored.event(Some(text))?)
    }
}
