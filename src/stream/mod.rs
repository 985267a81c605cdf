//! Live tails of logs: replay, then follow, under one cursor.
//!
//! A follower registers its interest before it looks, takes what is beyond its
//! cursor, hands it on, and waits for a notification or the poll. So there is no gap and no
//! duplicate between replay and live, and losing a notification costs one poll. All who
//! follow one session share one read a notification.

mod exec;
mod feed;
mod follower;
mod frame;
mod list;
mod view;

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{feed::Feeds, follower::Follower};
use crate::{
    base::{
        Origin,
        limit::{STREAM_BUFFER_FRAMES, STREAMS_MAX},
    },
    domain::{Level, OrgId, SessionId, TurnId},
    store::{Store, notification::Notifications},
};

pub use exec::{ExecLine, ExecPlace, ExecTail};
pub use frame::{Frame, Item};
pub use list::{Position, Roll, RollFrame};
pub use view::{view, views};

/// The streams of a process. Cheap to clone.
#[derive(Clone)]
pub struct Streams {
    store: Store,
    notifications: Notifications,
    feeds: Feeds,
    lists: list::Feeds,
    origin: Origin,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What a follower wants of a log.
#[derive(Clone, Debug)]
pub struct Tail {
    pub org: OrgId,
    pub session: SessionId,
    /// Events beyond this `seq`.
    pub after: i64,
    pub level: Level,
    /// An exact type, or `prefix.*`.
    pub kind: Option<String>,
    pub turn: Option<TurnId>,
    /// Also answers while they grow, where they grow in this process.
    pub deltas: bool,
}

/// There are too many streams already; try again later.
#[derive(Debug, thiserror::Error)]
#[error("this process serves as many streams as it may")]
pub struct Full;

impl Streams {
    /// Streams that end when `stop` is cancelled; readers resume elsewhere.
    pub fn new(store: Store, notifications: Notifications, origin: Origin, stop: CancellationToken) -> Self {
        let permits = Arc::new(Semaphore::new(STREAMS_MAX));
        let (feeds, lists) = (Feeds::default(), list::Feeds::default());
        Self { store, notifications, feeds, lists, origin, permits, tasks: TaskTracker::new(), stop }
    }

    /// Follows a log.
    ///
    /// The receiver's end is the reader: when it is dropped, or takes nothing for
    /// `STREAM_WRITE_TIMEOUT`, the follower ends.
    pub fn follow(&self, tail: Tail) -> Result<mpsc::Receiver<Frame>, Full> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| Full)?;
        let (frames, reader) = mpsc::channel(STREAM_BUFFER_FRAMES);
        self.tasks.spawn(Follower::new(self, tail, frames, permit).run(self.stop.clone()));
        Ok(reader)
    }

    /// Follows the list of an organization's sessions, under the same bounds.
    pub fn follow_list(&self, roll: Roll) -> Result<mpsc::Receiver<RollFrame>, Full> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| Full)?;
        let (frames, reader) = mpsc::channel(STREAM_BUFFER_FRAMES);
        self.tasks.spawn(list::Follower::new(self, roll, frames, permit).run(self.stop.clone()));
        Ok(reader)
    }

    /// Follows what a command writes, to its end, under the same bounds.
    pub fn follow_exec(&self, tail: ExecTail) -> Result<mpsc::Receiver<ExecLine>, Full> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| Full)?;
        let (lines, reader) = mpsc::channel(STREAM_BUFFER_FRAMES);
        self.tasks.spawn(exec::Follower::new(self, tail, lines, permit).run(self.stop.clone()));
        Ok(reader)
    }

    /// Waits until every follower has ended, after `stop`.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
