//! Shared read of one organization's session changes for all followers in this process.
//!
//! Called by followers. Changes are numbered as they are read: the first follower after a notification
//! reads the new ones, the others find them here. Only the newest are retained; a follower that is
//! further behind continues from its own position in the database.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::time::Instant;

use super::{Item, Page, Position, now, read};
use crate::{
    base::limit::{STREAM_FEED_BYTES, STREAM_FEED_EVENTS, STREAM_POLL},
    domain::OrgId,
    store::{self, Store},
};

/// The organizations whose lists are followed in this process.
#[derive(Clone, Default)]
pub(crate) struct Feeds(Arc<Mutex<HashMap<OrgId, Arc<Feed>>>>);

/// A follower's registration at an organization's feed.
pub(super) struct Registration {
    feeds: Feeds,
    feed: Arc<Feed>,
}

struct Feed {
    org: OrgId,
    followers: AtomicUsize,
    // Held during the database read, so that concurrent followers wait for its result.
    newest: tokio::sync::Mutex<Newest>,
}

/// The newest changes, without a gap.
#[derive(Default)]
struct Newest {
    items: VecDeque<Arc<Item>>,
    bytes: usize,
    /// Number of the first of `items`.
    first: u64,
    /// None before the first read.
    position: Option<Position>,
    /// Number of notifications before the last read, and the time of that read.
    notifications: u64,
    read_at: Option<Instant>,
}

/// Result of a read through the feed.
pub(super) enum FeedRead {
    /// The next changes, possibly none, and whether more may be available immediately.
    Next { items: Vec<Arc<Item>>, has_more: bool },
    /// The follower is behind the retained changes.
    Behind,
}

impl Feeds {
    /// Registers a follower at an organization's feed.
    pub(super) fn register(&self, org: OrgId) -> Registration {
        let new = || {
            let (followers, newest) = (AtomicUsize::new(0), tokio::sync::Mutex::default());
            Arc::new(Feed { org, followers, newest })
        };
        let feed = self.lock().entry(org).or_insert_with(new).clone();
        feed.followers.fetch_add(1, Ordering::Relaxed);
        Registration { feeds: self.clone(), feed }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OrgId, Arc<Feed>>> {
        self.0.lock().expect("no code panics while it holds the feeds lock")
    }
}

impl Registration {
    /// Returns the number of the next change. Any change that is not visible yet when this returns gets
    /// this number or a later one.
    pub(super) async fn next(&self, store: &Store) -> store::Result<u64> {
        let mut newest = self.feed.newest.lock().await;
        if newest.position.is_none() {
            newest.position = Some(now(store, self.feed.org).await?);
        }
        Ok(newest.next())
    }

    /// Returns the changes from number `next` on, given that `notifications` were counted.
    pub(super) async fn read_new(
        &self,
        store: &Store,
        next: u64,
        notifications: u64,
    ) -> store::Result<FeedRead> {
        let mut newest = self.feed.newest.lock().await;
        let Some(position) = newest.position.clone().filter(|_| next >= newest.first) else {
            return Ok(FeedRead::Behind);
        };
        if next < newest.next() {
            return Ok(FeedRead::Next { items: newest.beyond(next), has_more: false });
        }
        if newest.is_fresh(notifications) {
            return Ok(FeedRead::Next { items: Vec::new(), has_more: false });
        }
        let read_at = Instant::now();
        match read(store, self.feed.org, &position).await? {
            Page::Changes { items, end, has_more } => {
                newest.position = Some(end);
                newest.keep(&items, self.feed.followers.load(Ordering::Relaxed) > 1);
                // The position was between two snapshots and ends at an older one: newer changes may exist.
                let has_more = has_more || position.is_catching_up();
                if !has_more {
                    (newest.notifications, newest.read_at) = (notifications, Some(read_at));
                }
                Ok(FeedRead::Next { items, has_more })
            }
            Page::Foreign => {
                newest.clear();
                Ok(FeedRead::Behind)
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut feeds = self.feeds.lock();
        if self.feed.followers.fetch_sub(1, Ordering::Relaxed) == 1 {
            feeds.remove(&self.feed.org);
        }
    }
}

impl Newest {
    fn next(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Whether there was no notification since the last read. Without one, that only holds for a limited
    /// time, because notifications can be lost.
    fn is_fresh(&self, notifications: u64) -> bool {
        self.notifications >= notifications
            && self.read_at.is_some_and(|read_at| read_at.elapsed() < STREAM_POLL / 2)
    }

    fn beyond(&self, next: u64) -> Vec<Arc<Item>> {
        let passed = usize::try_from(next - self.first).unwrap_or(usize::MAX);
        self.items.iter().skip(passed).cloned().collect()
    }

    /// Adds changes that were read. Nothing is retained for a single follower.
    fn keep(&mut self, items: &[Arc<Item>], is_shared: bool) {
        for item in items {
            self.bytes += item.json.len();
            self.items.push_back(item.clone());
        }
        while !self.items.is_empty()
            && (!is_shared || self.items.len() > STREAM_FEED_EVENTS || self.bytes > STREAM_FEED_BYTES)
        {
            let oldest = self.items.pop_front();
            self.bytes -= oldest.map_or(0, |item| item.json.len());
            self.first += 1;
        }
    }

    /// Discards all changes, so that every follower resumes from its own position.
    fn clear(&mut self) {
        *self = Self { first: self.next() + 1, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::{base::Origin, domain::SessionId, store::listing::ListPosition};

    fn item(transaction: i64, bytes: usize) -> Arc<Item> {
        let session: SessionId = Origin::system().id();
        let place = json!({ "transaction": transaction, "session": session });
        let place: ListPosition = from_value(place).expect("a place");
        let behind: Position = from_value(json!({ "seen": "1:1:", "way": null })).expect("a position");
        let json = "x".repeat(bytes).into();
        Arc::new(Item { place, behind, session, traits: None, json })
    }

    #[test]
    fn what_is_kept_is_bounded_and_numbered_without_a_gap() {
        let mut newest = Newest::default();
        newest.keep(&[item(1, 10), item(2, 10)], true);
        assert_eq!((newest.first, newest.next(), newest.beyond(1).len()), (0, 2, 1));
        newest.keep(&[item(3, STREAM_FEED_BYTES)], true);
        assert_eq!((newest.first, newest.next()), (2, 3));
        newest.keep(&[item(4, 10)], false);
        assert_eq!((newest.first, newest.next(), newest.bytes), (4, 4, 0));
        let many: Vec<_> = (5..5 + 2 * STREAM_FEED_EVENTS as i64).map(|one| item(one, 1)).collect();
        newest.keep(&many, true);
        assert_eq!(newest.items.len(), STREAM_FEED_EVENTS);
        assert_eq!(newest.next(), 4 + 2 * STREAM_FEED_EVENTS as u64);
        newest.clear();
        assert!(newest.position.is_none() && newest.first > 4 + 2 * STREAM_FEED_EVENTS as u64);
    }
}
