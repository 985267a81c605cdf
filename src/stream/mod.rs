//! Live tails of logs: replay, then follow, under one cursor.
//!
//! A follower registers its interest before it looks, reads a page beyond its
//! cursor, hands it on, and waits for a hint or the poll. So there is no gap and no
//! duplicate between replay and live, and losing a hint costs one poll.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    base::limit::{
        STREAM_BUFFER_FRAMES, STREAM_HEARTBEAT, STREAM_PAGE_ROWS, STREAM_POLL, STREAM_WRITE_TIMEOUT,
        STREAMS_MAX,
    },
    domain::{Entry, Level, SessionId, TenantId, TurnId},
    store::{Store, event::Range, hint::Hints},
    wire::event::EventView,
};

/// The streams of a process. Cheap to clone.
#[derive(Clone)]
pub struct Streams {
    store: Store,
    hints: Hints,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What a follower wants of a log.
#[derive(Clone, Debug)]
pub struct Tail {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Events beyond this `seq`.
    pub after: i64,
    pub level: Level,
    /// An exact type, or `prefix.*`.
    pub kind: Option<String>,
    pub turn: Option<TurnId>,
}

/// There are too many streams already; try again later.
#[derive(Debug, thiserror::Error)]
#[error("this process serves as many streams as it may")]
pub struct Full;

impl Streams {
    /// Streams that end when `stop` is cancelled; readers resume elsewhere.
    pub fn new(store: Store, hints: Hints, stop: CancellationToken) -> Self {
        let permits = Arc::new(Semaphore::new(STREAMS_MAX));
        Self { store, hints, permits, tasks: TaskTracker::new(), stop }
    }

    /// Follows a log as frames of server-sent events.
    ///
    /// The receiver's end is the reader: when it is dropped, or takes nothing for
    /// `STREAM_WRITE_TIMEOUT`, the follower ends.
    pub fn follow(&self, tail: Tail) -> Result<mpsc::Receiver<String>, Full> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| Full)?;
        let (frames, reader) = mpsc::channel(STREAM_BUFFER_FRAMES);
        let follower = Follower { streams: self.clone(), tail, frames, _permit: permit };
        self.tasks.spawn(follower.run());
        Ok(reader)
    }

    /// Waits until every follower has ended, after `stop`.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

struct Follower {
    streams: Streams,
    tail: Tail,
    frames: mpsc::Sender<String>,
    _permit: OwnedSemaphorePermit,
}

/// The reader is gone, too slow, or told to resume elsewhere.
struct Ended;

impl Follower {
    async fn run(mut self) {
        let stop = self.streams.stop.clone();
        // Ended either way; there is nobody left to tell.
        let _ = stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) -> Result<(), Ended> {
        let mut watch = self.streams.hints.watch(self.tail.session);
        self.send("retry: 2000\n\n".to_owned()).await?;
        let mut heartbeat = Instant::now() + STREAM_HEARTBEAT;
        loop {
            let page = self.page().await;
            let is_full = page.len() as i64 == STREAM_PAGE_ROWS;
            for entry in page {
                self.tail.after = entry.seq;
                self.send(frame(&entry)).await?;
                heartbeat = Instant::now() + STREAM_HEARTBEAT;
            }
            if is_full {
                continue;
            }
            let closed = self.frames.clone();
            tokio::select! {
                () = watch.changed() => {}
                () = sleep_until(Instant::now() + STREAM_POLL) => {}
                () = sleep_until(heartbeat) => {
                    self.send(": alive\n\n".to_owned()).await?;
                    heartbeat = Instant::now() + STREAM_HEARTBEAT;
                }
                () = closed.closed() => return Err(Ended),
            }
        }
    }

    /// The next events; none when the database is away: the next look finds them.
    async fn page(&self) -> Vec<Entry> {
        let range = Range {
            after: self.tail.after,
            level: self.tail.level,
            kind: self.tail.kind.clone(),
            turn: self.tail.turn,
            limit: STREAM_PAGE_ROWS,
        };
        let read = self.streams.store.read_events(self.tail.tenant, self.tail.session, &range).await;
        read.unwrap_or_else(|error| {
            tracing::debug!(%error, session.id = %self.tail.session, "a stream could not read; it tries again");
            Vec::new()
        })
    }

    async fn send(&self, frame: String) -> Result<(), Ended> {
        match timeout(STREAM_WRITE_TIMEOUT, self.frames.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended),
        }
    }
}

/// One event as a frame: LF only, no `event:` line, the `seq` as its id.
fn frame(entry: &Entry) -> String {
    match EventView::of(entry).and_then(|view| serde_json::to_string(&view)) {
        Ok(json) => format!("id: {}\ndata: {json}\n\n", entry.seq),
        Err(error) => {
            tracing::error!(%error, session.id = %entry.session, entry.seq, "an event cannot be written out");
            String::from(": unreadable event\n\n")
        }
    }
}
