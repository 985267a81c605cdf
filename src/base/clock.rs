//! Clock port: the source of the current time.
//!
//! This clock stamps events, deadlines and expiries, and measures turns. Times that one process stores and
//! another one compares with its own clock, or with that of the database, would be wrong by the difference of
//! the machines' clocks. So a process of the service corrects its clock by that of the database
//! ([`SteeredClock`]). Leases are judged by the clock of the database itself.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use time::OffsetDateTime;

/// An instant in UTC. RFC 3339 on the wire, `timestamptz` in the database.
pub type Timestamp = OffsetDateTime;

/// Source of the current time.
pub trait Clock: Send + Sync {
    /// Returns the current UTC time in microseconds, the precision that Postgres stores.
    fn now(&self) -> Timestamp;
}

/// The wall clock of this machine.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one reader of the wall clock")]
    fn now(&self) -> Timestamp {
        microseconds(SystemTime::now().into())
    }
}

/// A clock that is corrected by the clock of the database.
pub struct SteeredClock {
    inner: Arc<dyn Clock>,
    /// Difference that is not corrected.
    tolerance: Duration,
    /// Microseconds that are added to the inner clock.
    correction: AtomicI64,
}

impl SteeredClock {
    /// Creates a clock that shows the time of `inner` until it is corrected.
    pub fn new(inner: Arc<dyn Clock>, tolerance: Duration) -> Self {
        Self { inner, tolerance, correction: AtomicI64::new(0) }
    }

    /// Compares the clock with a time that was read between two readings of it, and corrects it.
    ///
    /// Returns the difference of the inner clock in seconds, positive if it is ahead. Differences within
    /// the tolerance and the time of the reading are not corrected: a clock that is synchronized by NTP is never
    /// changed.
    pub fn steer(&self, before: Timestamp, read: Timestamp, after: Timestamp) -> f64 {
        let middle = before + (after - before) / 2;
        let behind: time::Duration = read - middle;
        if behind.unsigned_abs() > self.tolerance + (after - before).unsigned_abs() / 2 {
            let micros = i64::try_from(behind.whole_microseconds()).unwrap_or_default();
            self.correction.fetch_add(micros, Ordering::Relaxed);
            tracing::warn!(
                seconds = behind.as_seconds_f64(),
                "the clock of this machine differs from that of the database; corrected"
            );
        }
        -(self.correction.load(Ordering::Relaxed) as f64) / 1e6
    }
}

impl Clock for SteeredClock {
    fn now(&self) -> Timestamp {
        self.inner.now() + time::Duration::microseconds(self.correction.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for SteeredClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeredClock").field("correction", &self.correction).finish_non_exhaustive()
    }
}

/// A clock that advances only when a test moves it.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// Creates a clock that is set to `start`.
    pub fn at(start: Timestamp) -> Self {
        Self(Mutex::new(microseconds(start)))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().expect("no holder of the clock panics") += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("no holder of the clock panics")
    }
}

// Postgres stores microseconds; an event must read back exactly as it was written.
fn microseconds(at: Timestamp) -> Timestamp {
    at.replace_nanosecond(at.nanosecond() / 1_000 * 1_000).expect("a smaller nanosecond is still in range")
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const TOLERANCE: Duration = Duration::from_millis(500);
    const NOON: Timestamp = datetime!(2026-11-01 12:00:00 UTC);

    fn clock(minutes: i64) -> SteeredClock {
        SteeredClock::new(Arc::new(ManualClock::at(NOON + time::Duration::minutes(minutes))), TOLERANCE)
    }

    #[test]
    fn a_clock_that_is_wrong_by_minutes_follows_the_other_one() {
        for minutes in [-10, 10] {
            let clock = clock(minutes);
            let difference = clock.steer(clock.now(), NOON, clock.now());
            assert_eq!((clock.now(), difference), (NOON, minutes as f64 * 60.0));
            // The database is another one now, whose clock differs too.
            let later = NOON + time::Duration::minutes(1);
            clock.steer(clock.now(), later, clock.now());
            assert_eq!(clock.now(), later);
        }
    }

    #[test]
    fn a_difference_that_the_reading_explains_is_not_corrected() {
        let clock = clock(0);
        let (before, after) = (clock.now(), clock.now() + Duration::from_secs(8));
        clock.steer(before, NOON + TOLERANCE, before);
        clock.steer(before, NOON + Duration::from_secs(8), after);
        clock.steer(before, NOON, after);
        assert_eq!(clock.now(), NOON);
    }
}
