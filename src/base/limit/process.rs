//! Bounds of what many processes of a deployment know of each other and share.

use std::time::Duration;

/// Channels of the notifications about logs, lists and outputs, by id. A process with 500 open streams listens to
/// about 400 of them and receives that part of all changes; Postgres compares the channel of a notification with
/// each that a process listens to, so many more would cost more than they save.
pub const WATCH_SHARDS: u16 = 1_024;

/// Interval of the heartbeat of a process, which also reads the other live processes.
pub const PROCESS_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Time without a heartbeat after which a process gets no more notifications. Those that it got instead of a
/// live one cost a poll each.
pub const PROCESS_HEARTBEAT_TTL: Duration = Duration::from_secs(10);
/// Min interval between two reads of the live processes, when several start or end together.
pub const PROCESSES_REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// Shards of the organizations, by id: one process sends the deliveries of a shard.
pub const DELIVERY_SHARDS: u8 = 64;
/// Time after which any process sends a delivery that is due: its own is gone, or has no free place for it.
pub const DELIVERY_SHARD_GRACE: Duration = Duration::from_secs(3);
