//! The one source of time, random bits and new ids, passed down from the root.

use std::{fmt, sync::Arc, time::Duration};

use uuid::Builder;

use super::{
    Clock, Entropy, Id, Kind, Timestamp,
    clock::{SteeredClock, SystemClock},
    entropy::SystemEntropy,
};

/// Time, entropy and ids in one value; cheap to clone.
#[derive(Clone)]
pub struct Origin {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Origin {
    /// Creates an origin from the system clock and the system generator.
    pub fn system() -> Self {
        Self::new(Arc::new(SystemClock), Arc::new(SystemEntropy))
    }

    /// Creates an origin from another clock and generator, for tests and simulations.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { clock, entropy }
    }

    /// Returns an origin whose clock can be corrected, and that clock. Differences within `tolerance` are not.
    pub fn steered(&self, tolerance: Duration) -> (Self, Arc<SteeredClock>) {
        let clock = Arc::new(SteeredClock::new(self.clock.clone(), tolerance));
        (Self { clock: clock.clone(), entropy: self.entropy.clone() }, clock)
    }

    /// Returns the current UTC time, in microseconds.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Creates an id: a UUIDv7 (RFC 9562), so ids of one kind sort by time.
    ///
    /// The 12 bits after the version hold the fraction of the millisecond (RFC 9562 section 6.2,
    /// method 3).
    pub fn id<K: Kind>(&self) -> Id<K> {
        let nanos = self.now().unix_timestamp_nanos();
        let (millis, fraction) = ((nanos / 1_000_000) as u64, (nanos % 1_000_000 * 4_096 / 1_000_000) as u16);
        let mut rest: [u8; 10] = self.bytes();
        rest[..2].copy_from_slice(&fraction.to_be_bytes());
        let uuid = Builder::from_unix_timestamp_millis(millis, &rest).into_uuid();
        Id::from_uuid(uuid)
    }

    /// Returns random bytes; suitable for keys when the source is the system generator.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }

    /// Returns a number in `0.0..1.0`, for jitter.
    pub fn fraction(&self) -> f64 {
        u32::from_le_bytes(self.bytes()) as f64 / (u32::MAX as f64 + 1.0)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin")
    }
}
