//! Bounds of the log and of concurrent appends to it.

use std::time::Duration;

/// A body above this many bytes of JSON is stored in a blob.
pub const EVENT_BODY_BYTES_MAX: usize = 32 << 10;
/// Events of one append: one step with all its projections.
pub const APPEND_EVENTS_MAX: usize = 512;
/// Appends of leased turns that share one commit.
pub const APPEND_BATCH_MAX: usize = 32;
/// New sessions of one organization that share one commit.
pub const CREATION_BATCH_MAX: usize = 16;
/// Commits of one kind that a process runs concurrently; entries that arrive meanwhile form the
/// next batch. Two, so that one batch is prepared while the other is being written.
pub const COMMITTERS_MAX: usize = 2;
/// A commit that takes longer frees its committer's place: it waits for a lock, and other commits
/// must not wait for the same lock.
pub const COMMIT_SLOW: Duration = Duration::from_millis(100);
/// Memory of a process for the logs of turns that ended in it, in bytes. The next turn of such a
/// session reads only new events.
pub const LOG_CACHE_BYTES_MAX: usize = 32 << 20;
/// A cached log that is not used for this long is evicted.
pub const LOG_CACHE_TTL: Duration = Duration::from_secs(300);
/// Events that the history builder reads in one query.
pub const HISTORY_PAGE_ROWS: i64 = 1_000;
/// Time to write or read a body in the blob store. One that is not written in this time is stored in the database.
pub const BLOB_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay of a turn whose bodies the blob store does not return.
pub const BLOB_RETRY: Duration = Duration::from_secs(5);
/// Delay of a turn with a row that this version cannot read; a worker of another version may.
pub const UNREADABLE_RETRY: Duration = Duration::from_secs(30);
/// Bodies that a worker moves to the blob store at once, and the time for which it claims them.
pub const EVENT_CONTENTS_CLAIMED: i64 = 16;
pub const EVENT_CONTENT_CLAIM_TTL: Duration = Duration::from_secs(60);
/// Interval at which workers look for bodies to move.
pub const EVENT_CONTENT_POLL: Duration = Duration::from_secs(1);
