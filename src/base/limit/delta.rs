//! Bounds of response deltas on their way to followers in other processes.

use std::time::Duration;

/// Min interval between two notifications with deltas of a process; deltas in between are joined.
/// The first one leaves at once. A reader sees text grow smoothly at 20 updates a second.
pub const DELTA_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of deltas that wait for the next notification; more are dropped.
pub const DELTA_WAITING_BYTES_MAX: usize = 256 << 10;
/// Bytes of text of one delta in a notification. JSON escapes take at most 6 bytes for one, and
/// Postgres accepts 8,000 bytes.
pub const DELTA_TEXT_BYTES_MAX: usize = 1_200;
/// Interval at which a process announces the sessions whose deltas its readers follow.
pub const DELTA_ANNOUNCE_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which an announcement counts: two may be lost.
pub const DELTA_ANNOUNCE_TTL: Duration = Duration::from_secs(16);
/// Sessions whose announcements a process remembers.
pub const DELTA_ANNOUNCED_MAX: usize = 20_000;
