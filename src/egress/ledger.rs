//! Decisions as events, rate-limited by counting repeats.
//!
//! Called by the proxy. The first of equal decisions is written before its connection proceeds. Repeats are
//! counted, and the counts are written together with the next events. The number of distinct decisions is
//! bounded, because a sandbox chooses the names that it requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;

use super::decision::{Decision, Verdict};
use crate::base::limit::EGRESS_DECISIONS_MAX;

/// Destination of the decisions.
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends decisions with their counts.
    async fn write(&self, decisions: Vec<(Decision, u64)>) -> Result<(), Lost>;
}

/// The log cannot be written, so nothing may leave the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log of this session cannot be written now")]
pub struct Lost;

/// Replaces further host names once the limit of distinct decisions is reached.
const OTHERS: &str = "(others)";

pub(super) struct Ledger {
    log: Arc<dyn Log>,
    book: Mutex<Book>,
    /// Held while a decision is written, so that `close` can wait for it.
    write_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Book {
    /// Written decisions, each with the count of its repeats not yet written.
    counts: BTreeMap<Decision, u64>,
    closed: bool,
}

impl Ledger {
    pub(super) fn new(log: Arc<dyn Log>) -> Self {
        Self { log, book: Mutex::default(), write_lock: tokio::sync::Mutex::default() }
    }

    /// Writes a decision, or counts it if it was written before.
    ///
    /// # Errors
    /// The decision is not in the log; the caller must not proceed.
    pub(super) async fn note(&self, decision: Decision) -> Result<(), Lost> {
        let Some(first) = self.count(decision)? else { return Ok(()) };
        let _write_guard = self.write_lock.lock().await;
        // An equal one may have been written meanwhile.
        let Some(first) = self.count(first)? else { return Ok(()) };
        self.log.write(vec![(first.clone(), 1)]).await?;
        self.book().counts.insert(first, 0);
        Ok(())
    }

    /// Takes the counts that are not yet written. If writing fails, return them with [`Ledger::restore`].
    pub(super) fn take(&self) -> Vec<(Decision, u64)> {
        let mut book = self.book();
        let counted = book.counts.iter_mut().filter(|(_, count)| **count > 0);
        counted.map(|(decision, count)| (decision.clone(), std::mem::take(count))).collect()
    }

    /// Adds counts that could not be written.
    pub(super) fn restore(&self, taken: &[(Decision, u64)]) {
        let mut book = self.book();
        for (decision, count) in taken {
            *book.counts.entry(decision.clone()).or_default() += count;
        }
    }

    /// Writes the pending counts.
    pub(super) async fn flush(&self) {
        let _write_guard = self.write_lock.lock().await;
        let taken = self.take();
        if taken.is_empty() {
            return;
        }
        let closed = self.book().closed;
        if closed || self.log.write(taken.clone()).await.is_err() {
            self.restore(&taken);
        }
    }

    /// Refuses all further decisions, so nothing more is allowed. Returns when no write is in progress.
    pub(super) async fn close(&self) {
        self.book().closed = true;
        let _write_guard = self.write_lock.lock().await;
    }

    /// Counts a decision that is written; returns another one, which must be written first.
    fn count(&self, mut decision: Decision) -> Result<Option<Decision>, Lost> {
        let mut book = self.book();
        if book.closed {
            return Err(Lost);
        }
        if !book.counts.contains_key(&decision) && book.counts.len() >= EGRESS_DECISIONS_MAX {
            OTHERS.clone_into(&mut decision.host);
            decision.port = 0;
            decision.method.clear();
            if let Verdict::Allowed { secrets, .. } = &mut decision.verdict {
                secrets.clear();
            }
        }
        Ok(match book.counts.get_mut(&decision) {
            Some(count) => {
                *count += 1;
                None
            }
            None => Some(decision),
        })
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        // Counts stay consistent even if a holder of the lock panicked.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::decision::Reason;

    #[derive(Default)]
    struct FakeLog {
        lines: Mutex<Vec<(Decision, u64)>>,
        fails: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl Log for FakeLog {
        async fn write(&self, decisions: Vec<(Decision, u64)>) -> Result<(), Lost> {
            tokio::task::yield_now().await;
            if self.fails.load(std::sync::atomic::Ordering::SeqCst) {
                return Err(Lost);
            }
            self.lines.lock().unwrap().extend(decisions);
            Ok(())
        }
    }

    fn denied(host: &str) -> Decision {
        let verdict = Verdict::Denied(Reason::Host);
        Decision { host: host.to_owned(), port: 443, method: "CONNECT".to_owned(), verdict }
    }

    #[tokio::test]
    async fn equal_decisions_are_one_event_and_a_count() {
        let fake_log = Arc::new(FakeLog::default());
        let ledger = Ledger::new(Arc::clone(&fake_log) as _);
        for _ in 0..1_000 {
            ledger.note(denied("a.example")).await.unwrap();
        }
        assert_eq!(*fake_log.lines.lock().unwrap(), [(denied("a.example"), 1)]);
        ledger.flush().await;
        ledger.flush().await;
        assert_eq!(*fake_log.lines.lock().unwrap(), [(denied("a.example"), 1), (denied("a.example"), 999)]);
    }

    #[tokio::test]
    async fn a_loop_over_names_is_bounded() {
        let fake_log = Arc::new(FakeLog::default());
        let ledger = Ledger::new(Arc::clone(&fake_log) as _);
        for at in 0..5_000 {
            ledger.note(denied(&format!("a{at}.example"))).await.unwrap();
        }
        ledger.flush().await;
        let lines = fake_log.lines.lock().unwrap();
        assert!(lines.len() <= EGRESS_DECISIONS_MAX + 2, "{}", lines.len());
        assert_eq!(lines.iter().map(|(_, count)| count).sum::<u64>(), 5_000, "none is lost");
    }

    #[tokio::test]
    async fn a_decision_that_cannot_be_written_is_refused() {
        let fake_log = Arc::new(FakeLog::default());
        let ledger = Ledger::new(Arc::clone(&fake_log) as _);
        fake_log.fails.store(true, std::sync::atomic::Ordering::SeqCst);
        let both = tokio::join!(ledger.note(denied("a.example")), ledger.note(denied("a.example")));
        assert_eq!(both, (Err(Lost), Err(Lost)), "an equal one waits for the first");
        fake_log.fails.store(false, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(ledger.note(denied("a.example")).await, Ok(()), "it is written when it can be");
        let both = tokio::join!(ledger.note(denied("b.example")), ledger.note(denied("b.example")));
        assert_eq!(both, (Ok(()), Ok(())));
        ledger.flush().await;
        let lines = fake_log.lines.lock().unwrap().clone();
        assert_eq!(lines[lines.len() - 2..], [(denied("b.example"), 1), (denied("b.example"), 1)]);
        ledger.close().await;
        assert_eq!(ledger.note(denied("a.example")).await, Err(Lost), "a closed ledger takes nothing");
    }
}
