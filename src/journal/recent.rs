//! Logs of sessions whose turns ended in this process a while ago: the next turn of each
//! reads what has come since, and not all of it once more.
//!
//! A log only grows, so what was read of it stays true, whoever has the session. This is
//! memory that a process may lose at any time: the log in the database is the record.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use crate::{
    base::limit::{RECENT_LOG_AGE, RECENT_LOGS_BYTES_MAX},
    domain::{Event, SessionId},
};

/// The logs that a process has kept. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Recent(Arc<Mutex<Shelf>>);

/// Oldest first.
#[derive(Default)]
struct Shelf {
    logs: VecDeque<Kept>,
    bytes: usize,
}

struct Kept {
    session: SessionId,
    at: Instant,
    log: Log,
}

/// A log as it was read, from its first event on.
#[derive(Default)]
pub struct Log {
    pub events: Vec<Event>,
    weighed: Weighed,
}

/// So many of a log's events are so many bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weighed {
    events: usize,
    bytes: usize,
}

impl Log {
    /// The first events of a log, of which those that `weighed` tells of are as they were.
    /// What follows an event that is missing is not kept.
    pub fn new(mut events: Vec<Event>, mut weighed: Weighed) -> Self {
        let missing = (1..).zip(&events).position(|(seq, event)| event.seq != seq);
        events.truncate(missing.unwrap_or(events.len()));
        if weighed.events > events.len() {
            weighed = Weighed::default();
        }
        weighed.bytes += events[weighed.events..].iter().map(bytes).sum::<usize>();
        weighed.events = events.len();
        Self { events, weighed }
    }

    /// The `seq` of its last event; 0 of an empty one.
    pub fn head(&self) -> i64 {
        self.events.last().map_or(0, |event| event.seq)
    }

    /// What its events were found to weigh.
    pub fn weighed(&self) -> Weighed {
        self.weighed
    }
}

/// What an event takes in memory, near enough.
fn bytes(event: &Event) -> usize {
    let body = serde_json::to_vec(&event.draft.body).map_or(0, |body| body.len());
    size_of::<Event>() + body
}

impl Recent {
    /// Takes a session's log out; nothing when it is not there.
    pub(super) fn take(&self, session: SessionId) -> Log {
        let mut shelf = self.shelf();
        let place = shelf.logs.iter().rposition(|kept| kept.session == session);
        place.and_then(|place| shelf.remove(place)).unwrap_or_default()
    }

    /// Puts a session's log in, in place of others if need be.
    pub(super) fn put(&self, session: SessionId, log: Log) {
        if log.weighed.bytes > RECENT_LOGS_BYTES_MAX {
            return;
        }
        let mut shelf = self.shelf();
        if let Some(place) = shelf.logs.iter().rposition(|kept| kept.session == session) {
            shelf.remove(place);
        }
        shelf.bytes += log.weighed.bytes;
        shelf.logs.push_back(Kept { session, at: Instant::now(), log });
        while shelf.bytes > RECENT_LOGS_BYTES_MAX {
            shelf.remove(0);
        }
    }

    /// Forgets those that nobody has asked for in a while.
    pub(super) fn forget_old(&self) {
        let mut shelf = self.shelf();
        while shelf.logs.front().is_some_and(|kept| kept.at.elapsed() > RECENT_LOG_AGE) {
            shelf.remove(0);
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().expect("no holder of the shelf panics")
    }
}

impl Shelf {
    fn remove(&mut self, place: usize) -> Option<Log> {
        let kept = self.logs.remove(place)?;
        self.bytes -= kept.log.weighed.bytes;
        Some(kept.log)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::{
        base::Origin,
        domain::{
            Actor,
            event::{Body, Draft},
        },
    };

    fn event(origin: &Origin, seq: i64, text: &str) -> Event {
        let body = Body::AgentThinking { text: text.to_owned() };
        let (id, level) = (origin.id(), body.level());
        let draft =
            Draft { id, actor: Actor::agent(), level, turn_id: None, step_id: None, refs: Map::new(), body };
        Event { seq, ts: origin.now(), draft }
    }

    fn log(seqs: impl IntoIterator<Item = i64>, text: &str) -> Log {
        let origin = Origin::system();
        Log::new(seqs.into_iter().map(|seq| event(&origin, seq, text)).collect(), Weighed::default())
    }

    #[test]
    fn a_log_is_kept_up_to_the_first_event_that_is_missing() {
        assert_eq!(log([1, 2, 3], "a").head(), 3);
        assert_eq!(log([1, 2, 4, 5], "a").head(), 2);
        assert_eq!(log([2, 3], "a").head(), 0);
    }

    #[test]
    fn what_was_weighed_before_is_not_weighed_again_and_comes_to_the_same() {
        let whole = log(1..=5, "some text");
        let first = log(1..=3, "some text");
        let grown = Log::new(whole.events.clone(), first.weighed);
        assert_eq!(grown.weighed.bytes, whole.weighed.bytes);
        assert!(first.weighed.bytes > 3 * size_of::<Event>());
        // Less is there than was weighed.
        let cut = Log::new(whole.events[..2].to_vec(), first.weighed);
        assert_eq!(cut.weighed.bytes, log(1..=2, "some text").weighed.bytes);
    }

    #[test]
    fn a_log_is_taken_once_and_the_oldest_make_room() {
        let (recent, origin) = (Recent::default(), Origin::system());
        let sessions: Vec<SessionId> = (0..3).map(|_| origin.id()).collect();
        let half = "x".repeat(RECENT_LOGS_BYTES_MAX / 2);
        recent.put(sessions[0], log([1], "small"));
        recent.put(sessions[1], log([1, 2], "small"));
        assert_eq!(recent.take(sessions[0]).head(), 1);
        assert_eq!(recent.take(sessions[0]).head(), 0);
        recent.put(sessions[2], log([1], &half));
        recent.put(sessions[0], log([1], &half));
        assert_eq!(recent.take(sessions[1]).head(), 0);
        assert_eq!(recent.take(sessions[2]).head(), 0);
        assert_eq!(recent.take(sessions[0]).head(), 1);
        assert_eq!(recent.shelf().bytes, 0);
        // More than there is room for.
        recent.put(sessions[0], log([1], &half.repeat(2)));
        assert_eq!(recent.take(sessions[0]).head(), 0);
    }
}
