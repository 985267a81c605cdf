//! The reader of a stream, as its follower sees it: frames, a heartbeat, and the end.

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    base::{
        limit::{STREAM_HEARTBEAT, STREAM_OUTAGE_MAX, STREAM_WRITE_TIMEOUT},
        shares::Place,
    },
    store,
};

/// The follower ends: nothing follows, or the reader is gone, too slow, or must resume with another process.
pub(super) struct Ended;

/// The sending side of one stream; counted in `sojourn_streams` while it exists.
pub(super) struct Reader<F> {
    frames: mpsc::Sender<F>,
    /// Sent when nothing else was, so that proxies do not consider the connection dead.
    alive: F,
    heartbeat: Instant,
    /// Since when reads of the database fail.
    failing_since: Option<Instant>,
    _place: Place,
}

impl<F: Clone> Reader<F> {
    pub(super) fn new(frames: mpsc::Sender<F>, alive: F, place: Place) -> Self {
        metrics::gauge!("sojourn_streams").increment(1.0);
        let heartbeat = Instant::now() + STREAM_HEARTBEAT;
        Self { frames, alive, heartbeat, failing_since: None, _place: place }
    }

    pub(super) async fn send(&mut self, frame: F) -> Result<(), Ended> {
        self.heartbeat = Instant::now() + STREAM_HEARTBEAT;
        match timeout(STREAM_WRITE_TIMEOUT, self.frames.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended),
        }
    }

    /// Takes the result of a read for this reader. Returns `None` on an error; the next read retries.
    ///
    /// Reads that fail for `STREAM_OUTAGE_MAX` end the stream: heartbeats alone would keep the reader at a process
    /// that has lost its database, while others have not.
    pub(super) fn readable<T>(&mut self, read: store::Result<T>) -> Result<Option<T>, Ended> {
        match read {
            Ok(read) => {
                self.failing_since = None;
                Ok(Some(read))
            }
            Err(error) => {
                tracing::debug!(%error, "the read of a stream failed, retrying");
                let since = *self.failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() < STREAM_OUTAGE_MAX { Ok(None) } else { Err(Ended) }
            }
        }
    }

    /// Waits for `due` while the reader is connected. Returns `None` after a heartbeat; `due` is then dropped,
    /// so it has to be cancel-safe.
    pub(super) async fn wait<T>(&mut self, due: impl Future<Output = T>) -> Result<Option<T>, Ended> {
        tokio::select! {
            done = due => return Ok(Some(done)),
            () = sleep_until(self.heartbeat) => {}
            () = self.frames.closed() => return Err(Ended),
        }
        self.send(self.alive.clone()).await?;
        Ok(None)
    }
}

impl<F> Drop for Reader<F> {
    fn drop(&mut self) {
        metrics::gauge!("sojourn_streams").decrement(1.0);
    }
}
