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
/// Memory of a conversation, in bytes; a turn with a larger one ends with `context_exhausted`. The largest context of
/// a model, some 2,000,000 tokens, is about 8 MB of text, and responses are held twice.
pub const CONVERSATION_BYTES_MAX: usize = 16 << 20;
/// Memory of the messages of a session that no turn has read yet, in bytes: twice the text of 500,000 tokens. Of a
/// message beyond it the model gets the beginning.
pub const WAITING_INPUT_BYTES_MAX: usize = CONVERSATION_BYTES_MAX / 4;
/// Bytes of that beginning.
pub const INPUT_LEFT_OUT_BEGIN_BYTES: usize = 200;
/// Estimated tokens of the newest tool results that stay in a history when older ones are left out.
pub const PRUNE_KEPT_TOKENS: u64 = 40_000;
/// Old results are left out only if that saves as many tokens.
pub const PRUNE_SAVED_TOKENS_MIN: u64 = 20_000;
/// Bytes above which an input of an earlier turn may be left out: it can be longer than its model reads.
pub const PRUNED_INPUT_BYTES_MIN: usize = 4_000;
/// Bytes of its beginning that stay.
pub const PRUNED_INPUT_BEGIN_BYTES: usize = 1_000;
/// Newest inputs whose results are never left out.
pub const PRUNED_TURNS_KEPT: usize = 2;
/// Time after which a provider has dropped its cache of a history, so that changing its beginning costs nothing.
pub const MODEL_CACHE_TTL: Duration = Duration::from_secs(300);
/// Context windows that an agent may state, in tokens: min and max.
pub const CONTEXT_TOKENS: (u64, u64) = (2_000, 10_000_000);
/// Instructions for a summary, in bytes.
pub const COMPACTION_INSTRUCTIONS_BYTES_MAX: usize = 4_000;
/// Tokens that stay behind a summary: at least, and at most.
pub const COMPACTION_TAIL_TOKENS: (u64, u64) = (2_000, 15_000);
/// Part of a history that stays behind a summary: one of so many.
pub const COMPACTION_TAIL_PART: u64 = 4;
/// Summaries of one turn; one that would need another ends with `context_exhausted`.
pub const COMPACTIONS_PER_TURN_MAX: u32 = 2;
/// Refusals of a history as too long, one after the other, before its turn ends.
pub const CONTEXT_REFUSALS_MAX: u32 = 4;
/// Memory of a conversation above which it is summarized whatever the window of its model, in bytes.
pub const COMPACTION_BYTES: usize = CONVERSATION_BYTES_MAX / 4 * 3;
/// Memory of a process for the folds of logs of turns that ended in it, in bytes. The next turn of such a
/// session reads only new events.
pub const FOLD_CACHE_BYTES_MAX: usize = 32 << 20;
/// Folds in that cache. The memory of a small one is mostly that of its structure, which is not counted exactly.
pub const FOLD_CACHE_ENTRIES_MAX: usize = 2_048;
/// A cached fold that is not used for this long is evicted.
pub const FOLD_CACHE_TTL: Duration = Duration::from_secs(300);
/// Events by which the fold of a log grows until it is stored again. A turn that finds no cached fold reads at most
/// these, and those of its own session's last turn.
pub const FOLD_STORE_EVENTS: i64 = 1_000;
/// JSON of a stored fold, in bytes: several times the memory of its conversation, for escapes.
pub const FOLD_JSON_BYTES_MAX: u64 = 128 << 20;
/// Limits of a session whose warnings a fold remembers; a limit that had so many values since may warn again.
pub const WARNINGS_FOLDED_MAX: usize = 256;
/// Events that a reader of a log reads in one query, each with a body of at most `EVENT_BODY_BYTES_MAX`.
pub const LOG_PAGE_ROWS: i64 = 200;
/// Text of an export that is sent at once, in bytes.
pub const EXPORT_CHUNK_BYTES: usize = 64 << 10;
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
/// Events and bytes of JSON of a segment: a reader of one event has all of them in memory.
pub const SEGMENT_EVENTS_MAX: i64 = 10_000;
pub const SEGMENT_BYTES_MAX: usize = 8 << 20;
/// JSON of a segment that is read: the last event of a segment may be large.
pub const SEGMENT_READ_BYTES_MAX: u64 = 64 << 20;
/// Segments that a process reads at the same time, and that it caches for readers of their next pages.
pub const SEGMENT_READS_MAX: usize = 2;
pub const SEGMENTS_CACHED_MAX: usize = 3;
/// Time for which a segment is cached.
pub const SEGMENT_CACHE_TTL: Duration = Duration::from_secs(60);
/// Sessions whose events a worker moves at the same time.
pub const SESSIONS_MOVED_CONCURRENT_MAX: usize = 2;
