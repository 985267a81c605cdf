//! Bounds of the repositories that are cloned into a sandbox.

use std::time::Duration;

/// How long the clone of one source may take.
pub const SOURCE_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes that a git host may send for one source, and of the bundle of a local one.
pub const SOURCE_BYTES_MAX: u64 = 1 << 30;
/// A host that sends less than a byte a second for this long is given up, in seconds.
pub const SOURCE_STALL_SECONDS: u64 = 60;
/// Output of a clone that is kept, per stream, in bytes.
pub const SOURCE_OUTPUT_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a bundle that go into the sandbox at once: it takes them in one frame.
pub const SOURCE_PART_BYTES: usize = 2 << 20;
