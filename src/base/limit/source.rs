//! Bounds of the repositories that are cloned into a sandbox.

use std::time::Duration;

/// Timeout to clone one source.
pub const SOURCE_TIMEOUT: Duration = Duration::from_secs(600);
/// Max bytes that a git host may send for one source, and of the bundle of a local source.
pub const SOURCE_BYTES_MAX: u64 = 1 << 30;
/// A host that sends less than 1 byte/s for this many seconds has stalled; the clone fails.
pub const SOURCE_STALL_SECONDS: u64 = 60;
/// Output of a clone that is stored, per stream, in bytes.
pub const SOURCE_OUTPUT_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a bundle that are sent into the sandbox at once; the sandbox takes them in one frame.
pub const SOURCE_PART_BYTES: usize = 2 << 20;
