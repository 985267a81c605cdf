//! Limits of the deletion of what is past its time.

use std::time::Duration;

/// Interval at which the leader looks for what is past its time.
pub const RETENTION_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which the leader deletes one kind before it renews its leadership.
pub const RETENTION_ROUND: Duration = Duration::from_secs(10);
/// Deletions that run at the same time: a worker needs its few connections for the leases of its turns.
pub const RETENTION_CONNECTIONS: usize = 2;
/// Time after which another process leads, if the leader is gone.
pub const RETENTION_LEADER_TTL: Duration = Duration::from_secs(60);
/// The same for the search for sessions that have work but no job.
pub const SWEEP_LEADER_TTL: Duration = Duration::from_secs(15);
/// Sessions, operations or sets of blobs that are read at once, and that are deleted at the same time.
pub const RETENTION_BATCH: i64 = 100;
pub const RETENTION_CONCURRENT_MAX: usize = 4;
/// Sessions that are deleted in one transaction. Their rows are locked until it ends.
pub const RETENTION_SESSIONS_AT_ONCE: usize = 25;
/// Events of a session that are deleted in its transaction. If it has more, they are deleted in steps afterwards.
pub const DELETION_EVENTS_AT_ONCE: i64 = 10_000;
/// Days for which a deleted webhook or destination is kept: longer than its deliveries.
pub const DESTINATION_DAYS: i32 = 62;
/// Time after a delete when its blobs are removed again; a worker that had not seen the delete may
/// have written one.
pub const BLOB_PURGE_REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Time after a delete when its blobs are removed for the last time; a process that was frozen for less than
/// this may have written one when it continued.
pub const BLOB_PURGE_LAST_AFTER: Duration = Duration::from_secs(24 * 3_600);
/// Days for which readers of a list of sessions can learn that a session was deleted.
pub const REMOVAL_DAYS: i32 = 30;
/// Days for which the row of a silent node is kept.
pub const NODE_DAYS: i32 = 30;
