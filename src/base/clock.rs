//! The port through which everything reads the time.
//!
//! Leases are not judged by this clock but by the database's: two machines never
//! agree on the hour. This one stamps events and measures turns.

use std::{
    sync::Mutex,
    time::{Duration, SystemTime},
};

use time::OffsetDateTime;

/// An instant in UTC. RFC 3339 on the wire, `timestamptz` in the database.
pub type Timestamp = OffsetDateTime;

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// Now, in UTC, with the microsecond precision that Postgres keeps.
    fn now(&self) -> Timestamp;
}

/// The wall clock of this machine.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        microseconds(SystemTime::now().into())
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// A clock that shows `start`.
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

// Postgres keeps microseconds; an event must read back as it was written.
fn microseconds(at: Timestamp) -> Timestamp {
    at.replace_nanosecond(at.nanosecond() / 1_000 * 1_000).expect("a smaller nanosecond is still in range")
}
