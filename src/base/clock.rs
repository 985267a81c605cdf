//! Clock port: the source of the current time.
//!
//! This clock stamps events and measures turns. Lease expiry uses the database's clock instead,
//! because the clocks of two machines differ.

use std::{
    sync::Mutex,
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
