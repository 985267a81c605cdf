//! The move of events of archived sessions from rows to segments in the blob store.
//!
//! The object of a segment is stored and read back before one transaction adds the segment and deletes the rows. After
//! a crash in between the object has no segment; the next move writes the same object again.

use std::future::ready;

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{Error, Journal};
use crate::{
    base::limit::{LOG_PAGE_ROWS, RETENTION_BATCH, SESSIONS_MOVED_CONCURRENT_MAX},
    blob,
    store::{
        self,
        log::{Segment, SegmentEncoder},
        purge::{ScanPosition, Scanned},
    },
};

impl Journal {
    /// Moves the events of a page of sessions that were archived at least this many days ago. A session that is not
    /// finished at `until` continues with the next scan, like one whose events cannot be moved.
    ///
    /// Returns the position after which the next page begins; `None` if this was the last one.
    pub async fn move_events(
        &self,
        archived_days: i32,
        after: Option<ScanPosition>,
        until: Instant,
    ) -> Result<Option<ScanPosition>, Error> {
        let page = self.store.sessions_to_move(archived_days, after, RETENTION_BATCH).await?;
        let is_last = (page.len() as i64) < RETENTION_BATCH;
        let next = page.last().map(|one| one.position).filter(|_| !is_last);
        stream::iter(page)
            .map(|one| async move {
                if let Err(error) = self.move_events_of(one, until).await {
                    metrics::counter!("sojourn_segment_failures_total").increment(1);
                    tracing::warn!(%error, org.id = %one.org, session.id = %one.session, "events could not be moved; retrying");
                }
            })
            .buffer_unordered(SESSIONS_MOVED_CONCURRENT_MAX)
            .for_each(|()| ready(()))
            .await;
        Ok(next)
    }

    async fn move_events_of(&self, one: Scanned, until: Instant) -> Result<(), Error> {
        while let Some(unmoved) = self.store.unmoved_events(one.org, one.session).await? {
            // A segment with rows is written again, because its object may be lost: the rows are the truth.
            let to = unmoved.segment_to.unwrap_or(i64::MAX);
            let Some(segment) = self.store_segment(one, unmoved.from, to).await? else { break };
            let Some(moved) = self.store.move_to_segment(one.org, one.session, &segment).await? else {
                return Ok(());
            };
            metrics::counter!("sojourn_segments_stored_total").increment(1);
            metrics::counter!("sojourn_segment_bytes_total").increment(segment.bytes.cast_unsigned());
            metrics::counter!("sojourn_events_moved_total").increment(moved);
            // Without a deleted row another worker moves the same events.
            if moved == 0 || Instant::now() >= until {
                return Ok(());
            }
        }
        Ok(self.store.events_moved(one.org, one.session).await?)
    }

    /// Stores the object of a segment that begins with the event `from`, and reads it back. Returns none if the rows
    /// are gone.
    async fn store_segment(&self, one: Scanned, from: i64, to: i64) -> Result<Option<Segment>, Error> {
        let mut encoder = SegmentEncoder::new(from)?;
        loop {
            let range = (encoder.next_seq() - 1, to);
            let rows = self.store.event_rows(one.org, one.session, range, LOG_PAGE_ROWS).await?;
            let is_last = (rows.len() as i64) < LOG_PAGE_ROWS;
            encoder = on_another_thread(move || {
                encoder.push(&rows)?;
                Ok(encoder)
            })
            .await?;
            if is_last || encoder.is_full() {
                break;
            }
        }
        let Some((segment, object)) = on_another_thread(|| encoder.finish()).await? else { return Ok(None) };
        let key = segment.key(one.org, one.session);
        self.blobs.put(&key, object.clone()).await?;
        let stored: Bytes = self.blobs.get(&key).await?;
        if stored != object {
            let reason = format!("the blob {key} is read back with other content");
            return Err(blob::Error::Unavailable(reason).into());
        }
        Ok(Some(segment))
    }
}

/// Runs work that would keep other tasks of this thread waiting for milliseconds.
#[expect(clippy::disallowed_methods, reason = "awaited here")]
async fn on_another_thread<T: Send + 'static>(
    work: impl FnOnce() -> store::Result<T> + Send + 'static,
) -> store::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(store::Error::Corrupt(error.to_string())))
}
