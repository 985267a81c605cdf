//! Bounds of the operations that callers run on a session's sandbox.

use std::time::Duration;

/// Open operations of one session's sandbox.
pub const OPERATIONS_OPEN_MAX: i64 = 32;
/// Of these, the most that run concurrently.
pub const OPERATIONS_CONCURRENT_MAX: usize = 4;
/// Hours for which the result of an operation can be read again.
pub const OPERATION_HOURS: i32 = 24;
/// A request waits this long for the result before it responds that the operation is still open;
/// published clients time out after 30 s.
pub const OPERATION_WAIT: Duration = Duration::from_secs(20);
/// Interval at which a waiting request polls for the result, in case a notification is lost.
pub const OPERATION_POLL: Duration = Duration::from_millis(500);
/// Max and default wall time of a caller's command, in seconds.
pub const DIRECT_EXEC_SECONDS_MAX: u64 = 3_600;
pub const DIRECT_EXEC_SECONDS: u64 = 600;
/// Max arguments and variables of a caller's command, in bytes; the sandbox takes them in one
/// frame.
pub const DIRECT_EXEC_BYTES_MAX: usize = 128 << 10;
/// Bytes stored of each output of a caller's command; the beginning is kept.
pub const DIRECT_OUTPUT_BYTES_MAX: u64 = 256 << 10;
/// Interval at which new output of a command is sent to its followers.
pub const EXEC_OUTPUT_INTERVAL: Duration = Duration::from_millis(200);
/// Max bytes of each output sent at once: one row, and one frame of a stream.
pub const EXEC_OUTPUT_CHUNK_BYTES: usize = 16 << 10;
/// Max size of a file that a caller may write, in bytes; the sandbox takes it in one frame.
pub const FILE_WRITE_BYTES_MAX: usize = 3 << 20;
/// Max bytes of a file that one request reads; use a range to read more.
pub const FILE_READ_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a file that are requested from the sandbox at once.
pub const FILE_PART_BYTES: usize = 1 << 20;
/// Max size of an archive that a caller uploads or downloads, in bytes; it is buffered on disk.
pub const ARCHIVE_BYTES_MAX: u64 = 256 << 20;
/// Timeout for a caller to upload an archive.
pub const ARCHIVE_UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Archives that one process receives from callers concurrently.
pub const ARCHIVES_MAX: usize = 8;
/// Of these, the most that one organization may have.
pub const ARCHIVES_PER_ORG: usize = 2;
/// Time that an upload waits for its place.
pub const ARCHIVE_WAIT: Duration = Duration::from_secs(10);
/// Tools that callers register with one session.
pub const TOOLS_MAX: usize = 64;
/// Max entries in a directory listing, and the bytes of the listing.
pub const DIRECTORY_ENTRIES_MAX: usize = 5_000;
pub const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
/// Timeout of a file operation in the sandbox.
pub const FILE_TIMEOUT: Duration = Duration::from_secs(60);
