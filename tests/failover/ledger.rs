//! Record of everything that the service acknowledged to its callers, and of every answer that it must not give.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

/// Answers, frames and deliveries that callers received. Shared by all of them.
#[derive(Default)]
pub struct Ledger {
    sessions: Mutex<BTreeMap<String, Acknowledged>>,
    violations: Mutex<Vec<String>>,
    /// Times of accepted writes.
    accepted: Mutex<Vec<Instant>>,
    /// Events that the receiver of webhooks got.
    delivered: Mutex<BTreeSet<String>>,
    pub delivery_attempts: AtomicU64,
    /// 503 responses, each with a Retry-After.
    pub unavailable: AtomicU64,
    pub requests: AtomicU64,
    pub frames: AtomicU64,
    /// Streams that ended or were refused, and were opened again.
    pub resumes: AtomicU64,
    /// Readers that were told that events they had received are lost.
    pub told_lost: AtomicU64,
    /// Accepted sessions that do not exist any more; only where the database may lose commits.
    pub lost_sessions: AtomicU64,
    slowest_ms: AtomicU64,
}

/// Acknowledged facts of one session.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// A word in each accepted input.
    pub inputs: Vec<String>,
    /// Ids of the events that a stream delivered, by `seq`.
    pub frames: BTreeMap<i64, String>,
    /// Its reader has ended, with all of its events.
    pub is_read: bool,
    /// The service answered that it does not exist.
    pub is_lost: bool,
}

impl Ledger {
    /// Records a violation.
    pub fn violation(&self, words: impl Into<String>) {
        let words = words.into();
        eprintln!("VIOLATION {words}");
        lock(&self.violations).push(words);
    }

    /// All violations so far.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// Records an accepted write.
    pub fn accepted(&self) {
        lock(&self.accepted).push(Instant::now());
    }

    /// The longest time without an accepted write, from `since` to the last one; `None` before there is one.
    pub fn longest_gap_after(&self, since: Instant) -> Option<Duration> {
        let mut times: Vec<_> = lock(&self.accepted).iter().copied().filter(|at| *at > since).collect();
        times.sort();
        let before = std::iter::once(since).chain(times.iter().copied());
        before.zip(&times).map(|(before, at)| *at - before).max()
    }

    /// Number of accepted writes.
    pub fn writes(&self) -> usize {
        lock(&self.accepted).len()
    }

    /// Records how long an answer took.
    pub fn answered(&self, took: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.slowest_ms.fetch_max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The slowest answer.
    pub fn slowest(&self) -> Duration {
        Duration::from_millis(self.slowest_ms.load(Ordering::Relaxed))
    }

    /// Changes the record of a session.
    pub fn session(&self, id: &str, change: impl FnOnce(&mut Acknowledged)) {
        change(lock(&self.sessions).entry(id.to_owned()).or_default());
    }

    /// Everything that was acknowledged, by session.
    pub fn sessions(&self) -> BTreeMap<String, Acknowledged> {
        lock(&self.sessions).clone()
    }

    /// Records a delivery. `event` is the id of its event.
    pub fn delivered(&self, event: &str) {
        self.delivery_attempts.fetch_add(1, Ordering::Relaxed);
        lock(&self.delivered).insert(event.to_owned());
    }

    /// Ids of all delivered events.
    pub fn deliveries(&self) -> BTreeSet<String> {
        lock(&self.delivered).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
