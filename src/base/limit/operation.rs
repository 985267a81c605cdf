//! Bounds of what callers do with a session's sandbox themselves.

use std::time::Duration;

/// What callers may ask of one session's sandbox before it has answered.
pub const OPERATIONS_OPEN_MAX: i64 = 32;
/// Of these, how many are served at the same time.
pub const OPERATIONS_TOGETHER_MAX: usize = 4;
/// How long an answer can be asked for again.
pub const OPERATION_HOURS: i32 = 24;
/// How long a request waits for its answer before it says that it comes later: published
/// clients give up after 30 s.
pub const OPERATION_PATIENCE: Duration = Duration::from_secs(20);
/// How often who waits for an answer looks, should nobody tell.
pub const OPERATION_POLL: Duration = Duration::from_millis(500);
/// Longest and default wall time of a caller's command, in seconds.
pub const DIRECT_EXEC_SECONDS_MAX: u64 = 3_600;
pub const DIRECT_EXEC_SECONDS: u64 = 600;
/// Arguments and variables of a caller's command, in bytes: the sandbox takes them in one frame.
pub const DIRECT_EXEC_BYTES_MAX: usize = 128 << 10;
/// What is kept of each output of a caller's command: its beginning, in bytes.
pub const DIRECT_OUTPUT_BYTES_MAX: u64 = 256 << 10;
/// How often what a command has written is passed on to those who follow it.
pub const EXEC_OUTPUT_INTERVAL: Duration = Duration::from_millis(200);
/// Of each output at once, in bytes: a row, and a frame of a stream.
pub const EXEC_OUTPUT_CHUNK_BYTES: usize = 16 << 10;
/// Largest file that a caller may write, in bytes: the sandbox takes it in one frame.
pub const FILE_WRITE_BYTES_MAX: usize = 3 << 20;
/// Bytes of a file that one request reads; a range reads what is beyond.
pub const FILE_READ_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a file that the sandbox is asked for at once.
pub const FILE_PART_BYTES: usize = 1 << 20;
/// Largest archive that a caller sends or gets, in bytes; it waits on disks meanwhile.
pub const ARCHIVE_BYTES_MAX: u64 = 256 << 20;
/// How long a caller may take to send one.
pub const ARCHIVE_UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Archives that one process takes from callers at the same time.
pub const ARCHIVES_MAX: usize = 8;
/// Tools that callers register with one session.
pub const TOOLS_MAX: usize = 64;
/// Longest description of one, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4 << 10;
/// Entries of a directory that are named, and the bytes of their list.
pub const DIRECTORY_ENTRIES_MAX: usize = 5_000;
pub const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
/// How long a file operation may take in the sandbox.
pub const FILE_TIMEOUT: Duration = Duration::from_secs(60);
