//! Bounds of the log, and of what is written of it at the same time.

use std::time::Duration;

/// A body above this many bytes of JSON spills to a blob.
pub const EVENT_BODY_BYTES_MAX: usize = 32 << 10;
/// Events of one append: one step with all its views.
pub const APPEND_EVENTS_MAX: usize = 512;
/// Appends of leased turns that share one commit.
pub const RECORDS_TOGETHER_MAX: usize = 32;
/// New sessions of one organization that share one commit.
pub const CREATIONS_TOGETHER_MAX: usize = 16;
/// Commits of one kind that a process has under way: what comes meanwhile goes
/// together. Two, so that one is prepared while the other is being written.
pub const COMMITTERS_MAX: usize = 2;
/// A commit that takes longer no longer counts among them: it waits for somebody else,
/// and nobody else is to wait for that.
pub const COMMIT_SLOW: Duration = Duration::from_millis(100);
/// Memory of a process for the logs of turns that ended in it: the next turn of such a
/// session reads what is new.
pub const LOG_CACHE_BYTES_MAX: usize = 32 << 20;
/// How long such a log is kept when nobody asks for it.
pub const LOG_CACHE_AGE: Duration = Duration::from_secs(300);
/// Events that the history builder reads in one query.
pub const HISTORY_PAGE_ROWS: i64 = 1_000;
