//! Cache of the logs of sessions that ran a turn in this process recently.
//!
//! The next turn of such a session reads only the new events. A log is append-only, so a cached
//! prefix stays valid whichever process holds the lease. The process may drop the cache at any
//! time: the log in the database is authoritative.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use crate::{
    base::limit::{LOG_CACHE_BYTES_MAX, LOG_CACHE_TTL},
    domain::{Event, SessionId},
};

/// Log cache of a process. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct LogCache(Arc<Mutex<CachedLogs>>);

/// Ordered by insertion, oldest first.
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

/// A log that was read from its first event on.
#[derive(Default)]
pub struct Log {
    pub events: Vec<Event>,
    size: LogSize,
}

/// Size of a measured prefix of a log: number of events and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSize {
    events: usize,
    bytes: usize,
}

impl Log {
    /// Builds a log from its first events. `size` is the known size of an unchanged prefix of them.
    ///
    /// Events after a gap in `seq` are dropped.
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

    /// Returns the `seq` of the last event; 0 for an empty log.
    pub fn head(&self) -> i64 {
        self.events.last().map_or(0, |event| event.seq)
    }

    /// Returns the size of the events.
    pub fn size(&self) -> LogSize {
        self.size
    }
}

/// Approximate memory size of an event.
fn bytes(event: &Event) -> usize {
    let body = serde_json::to_vec(&event.draft.body).map_or(0, |body| body.len());
    size_of::<Event>() + body
}

impl LogCache {
    /// Removes and returns a session's log; empty if it is not cached.
    pub(super) fn take(&self, session: SessionId) -> Log {
        let mut cached = self.cached();
        let place = cached.logs.iter().rposition(|kept| kept.session == session);
        place.and_then(|place| cached.remove(place)).unwrap_or_default()
    }

    /// Inserts a session's log and evicts the oldest logs while the cache is too large.
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

    /// Evicts logs older than `LOG_CACHE_TTL`.
    pub(super) fn evict_old(&self) {
        let mut cached = self.cached();
        while cached.logs.front().is_some_and(|kept| kept.at.elapsed() > LOG_CACHE_TTL) {
            cached.remove(0);
        }
    }

    fn cached(&self) -> MutexGuard<'_, CachedLogs> {
        self.0.lock().expect("no code panics while it holds the cache lock")
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
    fn a_log_is_cached_up_to_the_first_missing_event() {
        assert_eq!(log([1, 2, 3], "a").head(), 3);
        assert_eq!(log([1, 2, 4, 5], "a").head(), 2);
        assert_eq!(log([2, 3], "a").head(), 0);
    }

    #[test]
    fn a_measured_prefix_is_not_measured_again_and_sums_to_the_same() {
        let whole = log(1..=5, "some text");
        let first = log(1..=3, "some text");
        let grown = Log::new(whole.events.clone(), first.size);
        assert_eq!(grown.size.bytes, whole.size.bytes);
        assert!(first.size.bytes > 3 * size_of::<Event>());
        // The log is shorter than the measured prefix.
        let cut = Log::new(whole.events[..2].to_vec(), first.size);
        assert_eq!(cut.size.bytes, log(1..=2, "some text").size.bytes);
    }

    #[test]
    fn a_log_is_taken_once_and_the_oldest_are_evicted() {
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
        // Larger than the whole cache.
        log_cache.put(sessions[0], log([1], &half.repeat(2)));
        assert_eq!(log_cache.take(sessions[0]).head(), 0);
    }
}
