//! Follower of one log for one reader: from its cursor to the present, then live.

use std::{collections::VecDeque, sync::Arc};

use tokio::{sync::broadcast, time::sleep};

use super::{
    feed::{FeedRead, Feeds, Registration},
    frame::{Frame, Item, is_wanted},
    reader::{Ended, Reader},
};
use crate::{
    base::{
        Origin, Timestamp,
        limit::{STREAM_DELTAS, STREAM_PAGE_ROWS, STREAM_POLL},
    },
    domain::{Level, OrgId, SessionId, TurnId, piece::ResponseDelta},
    store::{
        Store,
        log::Range,
        notification::{Notifications, Watch},
    },
    wire::delta::DeltaView,
};

/// A log to follow, with filters and the reader's position.
#[derive(Clone, Debug)]
pub struct Tail {
    pub org: OrgId,
    pub session: SessionId,
    /// Only events with a larger `seq`.
    pub after: i64,
    pub level: Level,
    /// Exact event type, or `prefix.*`.
    pub kind: Option<String>,
    pub turn: Option<TurnId>,
    /// Also send unfinished responses, best effort.
    pub deltas: bool,
}

pub(super) struct Follower {
    store: Store,
    registration: Registration,
    watch: Watch,
    pieces: Option<broadcast::Receiver<Arc<ResponseDelta>>>,
    /// Pieces of responses that come after events not yet sent.
    pending: VecDeque<Arc<ResponseDelta>>,
    /// Generation of the database in which the position was verified.
    generation: i64,
    tail: Tail,
    /// Time of the event at the position; `None` if this follower has not read it.
    ts: Option<Timestamp>,
    reader: Reader<Frame>,
    origin: Origin,
    /// True once the end of the log was reached: later events are live.
    is_current: bool,
}

impl Follower {
    pub(super) fn new(
        store: &Store,
        notifications: &Notifications,
        feeds: &Feeds,
        origin: &Origin,
        tail: Tail,
        reader: Reader<Frame>,
    ) -> Self {
        // Pieces of an unfinished response have at least the level `progress`.
        let wants_pieces = tail.deltas && tail.level >= Level::Progress;
        Self {
            store: store.clone(),
            registration: feeds.register(tail.org, tail.session),
            watch: notifications.watch(tail.session),
            pieces: wants_pieces.then(|| notifications.pieces(tail.session)),
            pending: VecDeque::new(),
            generation: store.generation(),
            tail,
            ts: None,
            reader,
            origin: origin.clone(),
            is_current: false,
        }
    }

    pub(super) async fn follow(mut self) -> Result<(), Ended> {
        loop {
            let notifications = self.watch.seen();
            if self.verify().await? && self.read_new(notifications).await? {
                continue;
            }
            let due = async {
                tokio::select! {
                    () = self.watch.changed() => None,
                    piece = next(&mut self.pieces) => Some(piece),
                    () = sleep(STREAM_POLL) => None,
                }
            };
            if let Some(Some(piece)) = self.reader.wait(due).await? {
                self.pending.push_back(piece);
                self.send_pieces().await?;
            }
        }
    }

    /// Verifies the position in a new generation of the database, which may have lost events that the reader got.
    /// Returns whether the position is known to be in the log.
    ///
    /// If it is not, the stream ends, and the next one is refused.
    async fn verify(&mut self) -> Result<bool, Ended> {
        let Tail { org, session, after, .. } = self.tail;
        while self.is_late() {
            // Before the read, whose connection may begin another one.
            let generation = self.store.generation();
            let position = self.store.log_position(org, session, after).await;
            let Some(position) = self.reader.readable(position)? else { return Ok(false) };
            if after > position.head || self.ts.is_some_and(|ts| position.ts.is_some_and(|other| other != ts))
            {
                tracing::warn!(session.id = %session, seq = after, "the log has lost events that a reader got");
                return Err(Ended);
            }
            self.registration.forget(generation).await;
            self.generation = generation;
        }
        Ok(true)
    }

    /// Whether the position was verified in an earlier generation only.
    fn is_late(&self) -> bool {
        self.generation != self.store.generation()
    }

    /// Sends new events. Returns whether more may be available immediately.
    async fn read_new(&mut self, notifications: u64) -> Result<bool, Ended> {
        let looked =
            self.registration.read_new(&self.store, &self.watch, self.tail.after, notifications).await;
        // The connection of this read may have begun a generation.
        if self.is_late() {
            return Ok(true);
        }
        match self.reader.readable(looked)? {
            Some(FeedRead::Next { items, has_more }) => {
                for item in items {
                    // Pieces of a response were published before its event is read here, so send them first.
                    self.send_pieces().await?;
                    (self.tail.after, self.ts) = (item.seq, Some(item.ts));
                    if self.wants(&item) {
                        let ts = item.ts;
                        self.reader.send(Frame::Event(item)).await?;
                        self.measure(ts);
                    }
                }
                self.send_pieces().await?;
                self.is_current = !has_more;
                Ok(has_more)
            }
            Some(FeedRead::Behind { to }) => {
                self.is_current = false;
                self.catch_up(to).await
            }
            None => Ok(false),
        }
    }

    /// Records the delay between an event and its delivery, for a reader that keeps up.
    fn measure(&self, ts: Timestamp) {
        if self.is_current {
            let lag = (self.origin.now() - ts).as_seconds_f64().max(0.0);
            metrics::histogram!("sojourn_stream_lag_seconds").record(lag);
        }
    }

    /// Reads past events from the database, filtered for this reader. Events up to `to` that are not in
    /// the result do not match its filter.
    async fn catch_up(&mut self, to: i64) -> Result<bool, Ended> {
        let range = Range {
            after: self.tail.after,
            level: self.tail.level,
            kind: self.tail.kind.clone(),
            turn: self.tail.turn,
            limit: STREAM_PAGE_ROWS,
        };
        let read = self.store.read_events(self.tail.org, self.tail.session, &range).await;
        if self.is_late() {
            return Ok(true);
        }
        let Some(page) = self.reader.readable(read)? else { return Ok(false) };
        let is_last = (page.len() as i64) < STREAM_PAGE_ROWS;
        for entry in &page {
            (self.tail.after, self.ts) = (entry.seq, Some(entry.ts));
            self.reader.send(Frame::Event(Arc::new(Item::of(entry)))).await?;
        }
        if is_last && to > self.tail.after {
            (self.tail.after, self.ts) = (to, None);
        }
        Ok(true)
    }

    fn wants(&self, item: &Item) -> bool {
        item.level <= self.tail.level
            && self.tail.turn.is_none_or(|turn| item.turn == Some(turn))
            && self.tail.kind.as_ref().is_none_or(|kind| is_wanted(&item.kind, kind))
    }

    /// Sends the pieces that directly follow the last sent event. Pieces of a response that is already
    /// complete are dropped; later ones wait.
    async fn send_pieces(&mut self) -> Result<(), Ended> {
        if let Some(receiver) = &mut self.pieces {
            while let Some(piece) = waiting(receiver) {
                self.pending.push_back(piece);
            }
        }
        let excess = self.pending.len().saturating_sub(STREAM_DELTAS);
        self.pending.drain(..excess);
        while let Some(piece) = self.pending.pop_front_if(|piece| piece.seq <= self.tail.after) {
            let is_wanted =
                piece.seq == self.tail.after && self.tail.turn.is_none_or(|turn| turn == piece.turn);
            if is_wanted && let Ok(json) = serde_json::to_string(&DeltaView::of(&piece)) {
                self.reader.send(Frame::Delta(json)).await?;
            }
        }
        Ok(())
    }
}

/// Waits for the next piece, if this follower wants pieces. A reader that is too slow misses some.
///
/// Cancel-safe: a piece that was not received stays in the channel.
async fn next(pieces: &mut Option<broadcast::Receiver<Arc<ResponseDelta>>>) -> Arc<ResponseDelta> {
    let Some(receiver) = pieces else { return std::future::pending().await };
    loop {
        match receiver.recv().await {
            Ok(piece) => return piece,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// Returns a piece that is already in the channel.
fn waiting(receiver: &mut broadcast::Receiver<Arc<ResponseDelta>>) -> Option<Arc<ResponseDelta>> {
    loop {
        match receiver.try_recv() {
            Ok(piece) => return Some(piece),
            Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => {
                return None;
            }
        }
    }
}
