//! Follower of one list for one reader: initial snapshot, missed changes, then live changes.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    Item, ListFrame, ListTail, Page, Position, begin,
    feed::{FeedRead, Feeds, Registration},
    read,
};
use crate::{
    base::limit::{STREAM_LIST_PAUSE, STREAM_POLL},
    store::{
        Store,
        listing::Snapshot,
        notification::{Notifications, Watch},
    },
    stream::reader::{Ended, Reader},
    wire::listing::ListedFrame,
};

pub(crate) struct Follower {
    store: Store,
    registration: Registration,
    watch: Watch,
    tail: ListTail,
    reader: Reader<ListFrame>,
}

impl Follower {
    pub(crate) fn new(
        store: &Store,
        notifications: &Notifications,
        feeds: &Feeds,
        tail: ListTail,
        reader: Reader<ListFrame>,
    ) -> Self {
        Self {
            store: store.clone(),
            registration: feeds.register(tail.org),
            watch: notifications.watch_list(tail.org),
            tail,
            reader,
        }
    }

    pub(crate) async fn follow(mut self) -> Result<(), Ended> {
        loop {
            // Take the number first: a change that the catch-up does not see gets it or a later one.
            let Some(next) = self.reader.readable(self.registration.next(&self.store).await)? else {
                self.reader.wait(sleep(STREAM_LIST_PAUSE)).await?;
                continue;
            };
            let seen = self.catch_up().await?;
            self.live(next, &seen).await?;
        }
    }

    /// Sends the initial snapshot, or the changes since the reader's position. Returns the snapshot up to
    /// which the reader is current.
    async fn catch_up(&mut self) -> Result<Snapshot, Ended> {
        // A resumed position between two snapshots ends at an old snapshot: later changes
        // may no longer be in the feed, so read once more.
        let mut is_late = self.tail.from.as_ref().is_some_and(Position::is_catching_up);
        loop {
            let has_more = match self.tail.from.clone() {
                None => match self.reader.readable(begin(&self.store, &self.tail).await)? {
                    Some((lines, position)) => {
                        for json in lines {
                            self.reader.send(ListFrame::Line { position: None, json }).await?;
                        }
                        self.tail.from = Some(position);
                        Some(false)
                    }
                    None => None,
                },
                Some(from) => match self.reader.readable(read(&self.store, self.tail.org, &from).await)? {
                    Some(Page::Changes { items, end, has_more }) => {
                        for item in items {
                            self.send_item(&item).await?;
                        }
                        self.tail.from = Some(end);
                        Some(has_more || std::mem::take(&mut is_late))
                    }
                    Some(Page::Foreign) => {
                        self.tail.from = None;
                        Some(true)
                    }
                    None => None,
                },
            };
            match (has_more, &self.tail.from) {
                (Some(false), Some(Position { seen, .. })) => {
                    let (seen, json) = (seen.clone(), ListedFrame::Current.line().into());
                    self.reader.send(ListFrame::Line { position: self.tail.from.clone(), json }).await?;
                    return Ok(seen);
                }
                (Some(_), _) => {}
                (None, _) => drop(self.reader.wait(sleep(STREAM_LIST_PAUSE)).await?),
            }
        }
    }

    /// Sends changes from number `next` on, except those already visible in `seen`. Returns when the
    /// follower is behind the feed.
    async fn live(&mut self, mut next: u64, seen: &Snapshot) -> Result<(), Ended> {
        loop {
            let notifications = self.watch.seen();
            let looked = self.registration.read_new(&self.store, next, notifications).await;
            match self.reader.readable(looked)? {
                Some(FeedRead::Next { items, has_more }) => {
                    next += items.len() as u64;
                    for item in items.iter().filter(|item| !seen.saw(item.place)) {
                        self.send_item(item).await?;
                    }
                    if has_more {
                        continue;
                    }
                }
                Some(FeedRead::Behind) => return Ok(()),
                None => {}
            }
            let due = async {
                tokio::select! {
                    // Changes within `STREAM_LIST_PAUSE` after a notification are read together.
                    () = self.watch.changed() => sleep(STREAM_LIST_PAUSE).await,
                    () = sleep(STREAM_POLL) => {}
                }
            };
            self.reader.wait(due).await?;
        }
    }

    async fn send_item(&mut self, item: &Arc<Item>) -> Result<(), Ended> {
        if let Some(json) = item.frame_for(&self.tail.filter) {
            self.reader.send(ListFrame::Line { position: Some(item.behind.clone()), json }).await?;
        }
        self.tail.from = Some(item.behind.clone());
        Ok(())
    }
}
