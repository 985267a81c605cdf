//! Cache of the folds of logs of sessions that ran a turn in this process recently.
//!
//! The next turn of such a session reads only the new events. A log is append-only, so a fold of its first
//! events stays valid whichever process holds the lease. The process may drop the cache at any time: the log in
//! the database is authoritative.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use crate::{
    base::limit::{FOLD_CACHE_BYTES_MAX, FOLD_CACHE_ENTRIES_MAX, FOLD_CACHE_TTL},
    domain::{SessionId, log_fold::LogFold},
};

/// Fold cache of a process. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct FoldCache(Arc<Mutex<CachedFolds>>);

/// Ordered by insertion, oldest first.
#[derive(Default)]
struct CachedFolds {
    folds: VecDeque<CachedFold>,
    bytes: usize,
}

struct CachedFold {
    session: SessionId,
    at: Instant,
    bytes: usize,
    fold: ReadFold,
}

/// The fold of a log as it was read.
#[derive(Debug)]
pub struct ReadFold {
    pub fold: LogFold,
    /// `seq` of the last event in the fold that the database has; 0 without one.
    pub stored_to: i64,
}

impl FoldCache {
    /// Removes and returns the fold of a session's log.
    pub(super) fn take(&self, session: SessionId) -> Option<ReadFold> {
        let mut cached = self.cached();
        let place = cached.folds.iter().rposition(|kept| kept.session == session)?;
        cached.remove(place)
    }

    /// Inserts the fold of a session's log and evicts the oldest folds while the cache is too large.
    pub(super) fn put(&self, session: SessionId, fold: ReadFold) {
        let bytes = fold.fold.bytes();
        if bytes > FOLD_CACHE_BYTES_MAX {
            return;
        }
        let mut cached = self.cached();
        if let Some(place) = cached.folds.iter().rposition(|kept| kept.session == session) {
            cached.remove(place);
        }
        cached.bytes += bytes;
        cached.folds.push_back(CachedFold { session, at: Instant::now(), bytes, fold });
        while cached.bytes > FOLD_CACHE_BYTES_MAX || cached.folds.len() > FOLD_CACHE_ENTRIES_MAX {
            cached.remove(0);
        }
    }

    /// Evicts folds older than `FOLD_CACHE_TTL`.
    pub(super) fn evict_old(&self) {
        let mut cached = self.cached();
        while cached.folds.front().is_some_and(|kept| kept.at.elapsed() > FOLD_CACHE_TTL) {
            cached.remove(0);
        }
    }

    fn cached(&self) -> MutexGuard<'_, CachedFolds> {
        self.0.lock().expect("no code panics while it holds the cache lock")
    }
}

impl CachedFolds {
    fn remove(&mut self, place: usize) -> Option<ReadFold> {
        let kept = self.folds.remove(place)?;
        self.bytes -= kept.bytes;
        Some(kept.fold)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::{
        base::Origin,
        domain::{
            Actor, Event,
            event::{Body, Draft, Outcome},
        },
    };

    /// The fold of a log of one result.
    fn fold(text: &str) -> ReadFold {
        let origin = Origin::system();
        let body = Body::ToolResult {
            call_id: "c".to_owned(),
            tool: "bash".to_owned(),
            output: text.to_owned(),
            is_error: false,
            outcome: Outcome::Ran,
            duration_ms: 0,
            content: Vec::new(),
        };
        let (id, level, turn_id) = (origin.id(), body.level(), Some(origin.id()));
        let draft =
            Draft { id, actor: Actor::agent(), level, turn_id, step_id: None, refs: Map::new(), body };
        let event = Event { seq: 1, ts: origin.now(), draft };
        ReadFold { fold: LogFold::of(&[event], false), stored_to: 0 }
    }

    #[test]
    fn a_fold_is_taken_once_and_the_oldest_are_evicted() {
        let (cache, origin) = (FoldCache::default(), Origin::system());
        let sessions: Vec<SessionId> = (0..3).map(|_| origin.id()).collect();
        let half = "x".repeat(FOLD_CACHE_BYTES_MAX / 2);
        let is_there = |session: usize| cache.take(sessions[session]).is_some();
        cache.put(sessions[0], fold("small"));
        cache.put(sessions[1], fold("small"));
        assert!(is_there(0) && !is_there(0));
        cache.put(sessions[2], fold(&half));
        cache.put(sessions[0], fold(&half));
        assert!(!is_there(1) && !is_there(2) && is_there(0));
        assert_eq!(cache.cached().bytes, 0);
        cache.put(sessions[0], fold("small"));
        (0..FOLD_CACHE_ENTRIES_MAX).for_each(|_| cache.put(origin.id(), fold("small")));
        assert!(!is_there(0));
        assert_eq!(cache.cached().folds.len(), FOLD_CACHE_ENTRIES_MAX);
    }
}
