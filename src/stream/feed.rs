//! Shared read of one session's log for all of its followers in this process.
//!
//! Called by followers. The first follower after a notification takes the entries contained in the
//! notification, or reads the new events; the others find them here. Only the newest events are retained,
//! and only while there is more than one follower. A follower that is further behind reads the database
//! itself until it has caught up.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::time::Instant;

use super::frame::Item;
use crate::{
    base::limit::{STREAM_FEED_BYTES, STREAM_FEED_EVENTS, STREAM_PAGE_ROWS, STREAM_POLL},
    domain::{Level, OrgId, SessionId},
    store::{self, Store, log::Range, notification::Watch},
};

/// The followed logs of this process.
#[derive(Clone, Default)]
pub(super) struct Feeds(Arc<Mutex<HashMap<SessionId, Arc<Feed>>>>);

/// A follower's registration at a log's feed.
pub(super) struct Registration {
    feeds: Feeds,
    feed: Arc<Feed>,
}

struct Feed {
    org: OrgId,
    session: SessionId,
    followers: AtomicUsize,
    // Held during the database read, so that concurrent followers wait for its result.
    newest: tokio::sync::Mutex<Newest>,
}

/// The events after `from` up to and including `to`, without a gap.
#[derive(Default)]
struct Newest {
    items: VecDeque<Arc<Item>>,
    bytes: usize,
    from: i64,
    /// None before the first read.
    to: Option<i64>,
    /// Number of notifications before the last read, and the time of that read.
    notifications: u64,
    read_at: Option<Instant>,
    /// Generation of the database when it was last forgotten.
    generation: i64,
}

/// Result of a read through the feed.
pub(super) enum FeedRead {
    /// The next events, possibly none, and whether more may be available immediately.
    Next { items: Vec<Arc<Item>>, has_more: bool },
    /// The follower is behind the retained events, which end at `to`.
    Behind { to: i64 },
}

impl Feeds {
    /// Registers a follower at a session's feed.
    pub(super) fn register(&self, org: OrgId, session: SessionId) -> Registration {
        let new = || {
            Arc::new(Feed {
                org,
                session,
                followers: AtomicUsize::new(0),
                newest: tokio::sync::Mutex::default(),
            })
        };
        let feed = self.lock().entry(session).or_insert_with(new).clone();
        feed.followers.fetch_add(1, Ordering::Relaxed);
        Registration { feeds: self.clone(), feed }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Feed>>> {
        self.0.lock().expect("no code panics while it holds the feeds lock")
    }
}

impl Registration {
    /// Forgets the retained events, once in each generation of the database, which may have lost some of them.
    pub(super) async fn forget(&self, generation: i64) {
        let mut newest = self.feed.newest.lock().await;
        if newest.generation != generation {
            *newest = Newest { generation, ..Newest::default() };
        }
    }

    /// Returns the events after `after`, given that `watch` has counted `notifications`.
    ///
    /// A position claimed by a reader is not trusted: the feed advances only to events that were read, or
    /// that notifications reported directly after the last known one.
    pub(super) async fn read_new(
        &self,
        store: &Store,
        watch: &Watch,
        after: i64,
        notifications: u64,
    ) -> store::Result<FeedRead> {
        let mut newest = self.feed.newest.lock().await;
        match newest.to {
            Some(to) if after < newest.from => return Ok(FeedRead::Behind { to }),
            Some(to) if after < to => {
                let items = newest.beyond(after);
                let has_more = items.last().is_some_and(|item| item.seq < to);
                return Ok(FeedRead::Next { items, has_more });
            }
            Some(_) if newest.is_fresh(notifications) => {
                return Ok(FeedRead::Next { items: Vec::new(), has_more: false });
            }
            Some(_) | None => {}
        }
        let is_shared = self.feed.followers.load(Ordering::Relaxed) > 1;
        if let Some(items) = newest.told(watch, notifications) {
            let begin = newest.to.unwrap_or(after);
            newest.keep(begin, &items, is_shared);
            newest.notifications = notifications;
            let items = items.into_iter().filter(|item| item.seq > after).collect();
            return Ok(FeedRead::Next { items, has_more: false });
        }
        let (begin, read_at) = (newest.to.unwrap_or(after), Instant::now());
        let limit = STREAM_PAGE_ROWS;
        let range = Range { after: begin, level: Level::Internal, kind: None, turn: None, limit };
        let page = store.read_events(self.feed.org, self.feed.session, &range).await?;
        let items: Vec<_> = page.iter().map(|entry| Arc::new(Item::of(entry))).collect();
        let has_more = items.len() as i64 == limit;
        newest.keep(begin, &items, is_shared);
        if !has_more {
            (newest.notifications, newest.read_at) = (notifications, Some(read_at));
        }
        let items = items.into_iter().filter(|item| item.seq > after).collect();
        Ok(FeedRead::Next { items, has_more })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut feeds = self.feeds.lock();
        if self.feed.followers.fetch_sub(1, Ordering::Relaxed) == 1 {
            feeds.remove(&self.feed.session);
        }
    }
}

impl Newest {
    /// Whether there was no notification since the last read. Without one, that only holds for a limited
    /// time, because notifications can be lost.
    fn is_fresh(&self, notifications: u64) -> bool {
        self.notifications >= notifications
            && self.read_at.is_some_and(|read_at| read_at.elapsed() < STREAM_POLL / 2)
    }

    /// Returns the entries reported by the notifications since the last read, if all of them contained
    /// their entries and these directly follow the last known event.
    fn told(&self, watch: &Watch, notifications: u64) -> Option<Vec<Arc<Item>>> {
        let to = self.to?;
        let told = watch.told(self.notifications, notifications)?;
        let new: Vec<_> = told.iter().filter(|entry| entry.seq > to).collect();
        let is_next = new.iter().zip(to + 1..).all(|(entry, seq)| entry.seq == seq);
        is_next.then(|| new.into_iter().map(|entry| Arc::new(Item::of(entry))).collect())
    }

    fn beyond(&self, after: i64) -> Vec<Arc<Item>> {
        let items = self.items.iter().filter(|item| item.seq > after);
        items.take(STREAM_PAGE_ROWS as usize).cloned().collect()
    }

    /// Updates the retained input of a turn, so that a later follower gets it as from the database.
    fn mark_processed(&mut self, started: &Item) {
        for item in &mut self.items {
            if let Some(processed) = item.processed(started) {
                self.bytes += processed.json.len() - item.json.len();
                *item = Arc::new(processed);
            }
        }
    }

    /// Adds events that were read after `begin`.
    fn keep(&mut self, begin: i64, items: &[Arc<Item>], is_shared: bool) {
        let Some(last) = items.last() else { return };
        if self.to.is_none() {
            self.from = begin;
        }
        self.to = Some(last.seq);
        if !is_shared {
            self.items.clear();
            (self.bytes, self.from) = (0, last.seq);
            return;
        }
        for item in items {
            if item.consumes_input() {
                self.mark_processed(item);
            }
            self.bytes += item.json.len();
            self.items.push_back(item.clone());
        }
        while self.items.len() > STREAM_FEED_EVENTS || self.bytes > STREAM_FEED_BYTES {
            let Some(oldest) = self.items.pop_front() else { break };
            self.bytes -= oldest.json.len();
            self.from = oldest.seq;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Timestamp;

    fn item(seq: i64, bytes: usize) -> Arc<Item> {
        let (kind, json) = ("agent.message".to_owned(), "x".repeat(bytes));
        Arc::new(Item { seq, ts: Timestamp::UNIX_EPOCH, level: Level::User, kind, turn: None, json })
    }

    fn seqs(newest: &Newest, after: i64) -> Vec<i64> {
        newest.beyond(after).iter().map(|item| item.seq).collect()
    }

    #[test]
    fn what_is_kept_is_bounded_and_has_no_gap() {
        let mut newest = Newest::default();
        newest.keep(5, &[item(6, 10), item(7, 10)], true);
        assert_eq!((newest.from, newest.to, seqs(&newest, 6)), (5, Some(7), vec![7]));
        newest.keep(7, &[item(8, STREAM_FEED_BYTES)], true);
        assert_eq!((newest.from, newest.to, seqs(&newest, 7)), (7, Some(8), vec![8]));
        // Nothing is retained for a single follower.
        newest.keep(8, &[item(9, 10)], false);
        assert_eq!((newest.from, newest.to, newest.bytes), (9, Some(9), 0));
        let many: Vec<_> = (10..10 + 2 * STREAM_FEED_EVENTS as i64).map(|seq| item(seq, 1)).collect();
        newest.keep(9, &many, true);
        assert_eq!(newest.items.len(), STREAM_FEED_EVENTS);
        assert_eq!(newest.items.front().map(|item| item.seq), Some(newest.from + 1));
    }

    #[test]
    fn retained_input_is_processed_once_its_turn_starts() {
        let turn = Some(crate::base::Origin::system().id());
        let item = |seq, kind: &str, json: &str| {
            let (kind, json, level) = (kind.to_owned(), json.to_owned(), Level::User);
            Arc::new(Item { seq, ts: Timestamp::UNIX_EPOCH, level, kind, turn, json })
        };
        let mut newest = Newest::default();
        let input = item(1, "user.message", r#"{"seq":1,"processed_at":null}"#);
        newest.keep(0, &[input.clone(), item(2, "turn.started", "{}")], true);
        let retained: Vec<_> = newest.beyond(0).iter().map(|item| item.json.clone()).collect();
        assert_eq!(retained, [r#"{"seq":1,"processed_at":"1970-01-01T00:00:00Z"}"#, "{}"]);
        assert_eq!(newest.bytes, retained.concat().len());
        let mut other = Newest::default();
        let started = Item { turn: None, ..(*item(2, "turn.started", "{}")).clone() };
        other.keep(0, &[input.clone(), Arc::new(started)], true);
        assert_eq!(other.beyond(0)[0].json, input.json, "the input of another turn waits");
    }

    #[test]
    fn nothing_is_known_before_something_was_read() {
        let mut newest = Newest::default();
        newest.keep(1_000_000, &[], true);
        assert_eq!((newest.from, newest.to), (0, None));
        assert!(!newest.is_fresh(0));
    }
}
