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
    base::limit::{LOG_CACHE_AGE, LOG_CACHE_BYTES_MAX},
    domain::{Event, SessionId},
};

/// The logs that a process has kept. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct LogCache(Arc<Mutex<CachedLogs>>);

/// Oldest first.
#[derive(Default)]
struct CachedLogs {
    logs: VecDeque<CachedLog>,
    bytes: usize,
}

struct CachedLog {
    session: SessionId,
    at: Instant,
    log: Log,
}

/// A log as it was read, from its first event on.
#[derive(Default)]
pub struct Log {
    pub events: Vec<Event>,
    size: LogSize,
}

/// So many of a log's events are so many bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSize {
    events: usize,
    bytes: usize,
}

impl Log {
    /// The first events of a log, of which those that `weighed` tells of are as they were.
    /// What follows an event that is missing is not kept.
    pub fn new(mut events: Vec<Event>, mut size: LogSize) -> Self {
        let missing = (1..).zip(&events).position(|(seq, event)| event.seq != seq);
        events.truncate(missing.unwrap_or(events.len()));
        if size.events > events.len() {
            size = LogSize::default();
        }
        size.bytes += events[size.events..].iter().map(bytes).sum::<usize>();
        size.events = events.len();
        Self { events, size }
    }

    /// The `seq` of its last event; 0 of an empty one.
    pub fn head(&self) -> i64 {
        self.events.last().map_or(0, |event| event.seq)
    }

    /// What its events were found to weigh.
    pub fn size(&self) -> LogSize {
        self.size
    }
}

/// What an event takes in memory, near enough.
fn bytes(event: &Event) -> usize {
    let body = serde_json::to_vec(&event.draft.body).map_or(0, |body| body.len());
    size_of::<Event>() + body
}

impl LogCache {
    /// Takes a session's log out; nothing when it is not there.
    pub(super) fn take(&self, session: SessionId) -> Log {
        let mut cached = self.cached();
        let place = cached.logs.iter().rposition(|kept| kept.session == session);
        place.and_then(|place| cached.remove(place)).unwrap_or_default()
    }

    /// Puts a session's log in, in place of others if need be.
    pub(super) fn put(&self, session: SessionId, log: Log) {
        if log.size.bytes > LOG_CACHE_BYTES_MAX {
            return;
        }
        let mut cached = self.cached();
        if let Some(place) = cached.logs.iter().rposition(|kept| kept.session == session) {
            cached.remove(place);
        }
        cached.bytes += log.size.bytes;
        cached.logs.push_back(CachedLog { session, at: Instant::now(), log });
        while cached.bytes > LOG_CACHE_BYTES_MAX {
            cached.remove(0);
        }
    }

    /// Forgets those that nobody has asked for in a while.
    pub(super) fn forget_old(&self) {
        let mut cached = self.cached();
        while cached.logs.front().is_some_and(|kept| kept.at.elapsed() > LOG_CACHE_AGE) {
            cached.remove(0);
        }
    }

    fn cached(&self) -> MutexGuard<'_, CachedLogs> {
        self.0.lock().expect("no holder of the cache panics")
    }
}

impl CachedLogs {
    fn remove(&mut self, place: usize) -> Option<Log> {
        let kept = self.logs.remove(place)?;
        self.bytes -= kept.log.size.bytes;
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
        Log::new(seqs.into_iter().map(|seq| event(&origin, seq, text)).collect(), LogSize::default())
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
        let grown = Log::new(whole.events.clone(), first.size);
        assert_eq!(grown.size.bytes, whole.size.bytes);
        assert!(first.size.bytes > 3 * size_of::<Event>());
        // Less is there than was weighed.
        let cut = Log::new(whole.events[..2].to_vec(), first.size);
        assert_eq!(cut.size.bytes, log(1..=2, "some text").size.bytes);
    }

    #[test]
    fn a_log_is_taken_once_and_the_oldest_make_room() {
        let (log_cache, origin) = (LogCache::default(), Origin::system());
        let sessions: Vec<SessionId> = (0..3).map(|_| origin.id()).collect();
        let half = "x".repeat(LOG_CACHE_BYTES_MAX / 2);
        log_cache.put(sessions[0], log([1], "small"));
        log_cache.put(sessions[1], log([1, 2], "small"));
        assert_eq!(log_cache.take(sessions[0]).head(), 1);
        assert_eq!(log_cache.take(sessions[0]).head(), 0);
        log_cache.put(sessions[2], log([1], &half));
        log_cache.put(sessions[0], log([1], &half));
        assert_eq!(log_cache.take(sessions[1]).head(), 0);
        assert_eq!(log_cache.take(sessions[2]).head(), 0);
        assert_eq!(log_cache.take(sessions[0]).head(), 1);
        assert_eq!(log_cache.cached().bytes, 0);
        // More than there is room for.
        log_cache.put(sessions[0], log([1], &half.repeat(2)));
        assert_eq!(log_cache.take(sessions[0]).head(), 0);
    }
}
