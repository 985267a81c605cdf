//! Bounds of child sessions, and of the tools with which an agent works with them.

/// Ancestors of a session; each adds a read before every model call of the lowest session.
pub const SESSION_DEPTH_MAX: i64 = 8;
/// Descendants of a root session; their usage is summed before each of their model calls.
pub const SESSION_DESCENDANTS_MAX: i64 = 1_000;
/// Sessions of one call of `session_wait`.
pub const SESSION_WAIT_IDS_MAX: usize = 64;
/// Time that a call of `session_wait` waits, in seconds: min, default and max.
pub const SESSION_WAIT_SECONDS: (u64, u64, u64) = (1, 3_600, 2_592_000);
/// Text of the results of one `session_wait`, shared by its sessions, in bytes.
pub const SESSION_REPORTS_BYTES_MAX: usize = 20_000;
/// Events of one result of `session_read`.
pub const SESSION_READ_EVENTS_MAX: i64 = 50;
/// Text of one result of `session_read`, in bytes.
pub const SESSION_READ_BYTES_MAX: usize = 20_000;
