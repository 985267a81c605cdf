//! Live streams of logs, session lists and command output: replay, then follow, with one cursor.
//!
//! A follower subscribes to notifications before it reads, sends what is after its cursor, and waits for
//! a notification or the poll. So there is no gap and no duplicate between replay and live, and a lost
//! notification delays an event by at most one poll interval. All followers of one session share one read
//! per notification.

mod exec;
mod feed;
mod follower;
mod frame;
mod list;
mod reader;
mod view;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    feed::Feeds,
    follower::Follower,
    reader::{Ended, Reader},
};
use crate::{
    base::{
        Origin,
        limit::{STREAM_BUFFER_FRAMES, STREAMS_MAX, STREAMS_PER_ORG_MAX},
        shares::Shares,
    },
    domain::OrgId,
    store::{Store, notification::Notifications},
};

pub use exec::{ExecLine, ExecPlace, ExecTail};
pub use follower::Tail;
pub use frame::{Frame, Item};
pub use list::{ListFrame, ListTail, Position};
pub use view::{view, views};

/// The streams of a process. Cheap to clone.
#[derive(Clone)]
pub struct Streams {
    store: Store,
    notifications: Notifications,
    feeds: Feeds,
    lists: list::Feeds,
    origin: Origin,
    places: Arc<Shares<OrgId>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The process, or the organization in it, has reached its limit of streams; try again later.
#[derive(Debug, thiserror::Error)]
#[error("this process, or the organization in it, has reached its limit of open streams")]
pub struct Full;

impl Streams {
    /// Creates streams that end when `stop` is canceled; readers then resume with another process.
    pub fn new(store: Store, notifications: Notifications, origin: Origin, stop: CancellationToken) -> Self {
        let places = Arc::new(Shares::new(STREAMS_MAX, STREAMS_PER_ORG_MAX));
        let (feeds, lists) = (Feeds::default(), list::Feeds::default());
        Self { store, notifications, feeds, lists, origin, places, tasks: TaskTracker::new(), stop }
    }

    /// Follows a log.
    ///
    /// The follower ends when the returned receiver is dropped, or accepts nothing for
    /// `STREAM_WRITE_TIMEOUT`.
    pub fn follow(&self, tail: Tail) -> Result<mpsc::Receiver<Frame>, Full> {
        self.open(tail.org, Frame::Alive, |reader| {
            let Self { store, notifications, feeds, origin, .. } = self;
            Follower::new(store, notifications, feeds, origin, tail, reader).follow()
        })
    }

    /// Follows the list of an organization's sessions, with the same limits.
    pub fn follow_list(&self, tail: ListTail) -> Result<mpsc::Receiver<ListFrame>, Full> {
        self.open(tail.org, ListFrame::Alive, |reader| {
            list::Follower::new(&self.store, &self.notifications, &self.lists, tail, reader).follow()
        })
    }

    /// Follows a command's output until the command ends, with the same limits.
    pub fn follow_exec(&self, tail: ExecTail) -> Result<mpsc::Receiver<ExecLine>, Full> {
        self.open(tail.org, ExecLine::Alive, |reader| {
            exec::Follower::new(&self.store, &self.notifications, tail, reader).follow()
        })
    }

    /// Starts a follower, which runs until it ends or this process stops.
    fn open<F: Clone, W>(
        &self,
        org: OrgId,
        alive: F,
        follow: impl FnOnce(Reader<F>) -> W,
    ) -> Result<mpsc::Receiver<F>, Full>
    where
        W: Future<Output = Result<(), Ended>> + Send + 'static,
    {
        let place = self.places.try_take(org).ok_or(Full)?;
        let (frames, receiver) = mpsc::channel(STREAM_BUFFER_FRAMES);
        let work = follow(Reader::new(frames, alive, place));
        // Ended in either case; no one to report to.
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(work));
        Ok(receiver)
    }

    /// Waits until every follower has ended, after `stop`.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
