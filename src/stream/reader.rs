//! The reader of a stream, as its follower sees it: frames, a heartbeat, and the end.

use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep_until, timeout},
};

use crate::base::limit::{STREAM_HEARTBEAT, STREAM_WRITE_TIMEOUT};

/// The follower ends: nothing follows, or the reader is gone, too slow, or must resume with another process.
pub(super) struct Ended;

/// The sending side of one stream; counted in `sojourn_streams` while it exists.
pub(super) struct Reader<F> {
    frames: mpsc::Sender<F>,
    /// Sent when nothing else was, so that proxies do not consider the connection dead.
    alive: F,
    heartbeat: Instant,
    _permit: OwnedSemaphorePermit,
}

impl<F: Clone> Reader<F> {
    pub(super) fn new(frames: mpsc::Sender<F>, alive: F, permit: OwnedSemaphorePermit) -> Self {
        metrics::gauge!("sojourn_streams").increment(1.0);
        Self { frames, alive, heartbeat: Instant::now() + STREAM_HEARTBEAT, _permit: permit }
    }

    pub(super) async fn send(&mut self, frame: F) -> Result<(), Ended> {
        self.heartbeat = Instant::now() + STREAM_HEARTBEAT;
        match timeout(STREAM_WRITE_TIMEOUT, self.frames.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended),
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
