//! Bounds of schedules, triggers and scheduled wakes.

use std::time::Duration;

/// Max length of a cron expression, in bytes.
pub const CRON_BYTES_MAX: usize = 200;
/// Schedules of one agent.
pub const SCHEDULES_MAX: i64 = 100;
/// Consecutive failed runs after which a schedule is disabled.
pub const SCHEDULE_FAILURES_MAX: i32 = 5;
/// Days for which the runs of a schedule are stored.
pub const SCHEDULE_RUN_DAYS: i32 = 30;
/// Triggers of one agent.
pub const TRIGGERS_MAX: i64 = 20;
/// Sustained messages per second of one trigger; the burst is four times as many.
pub const TRIGGER_MESSAGES_PER_SECOND: u32 = 10;
/// Lookups of triggers that one process does concurrently for messages whose signature is not verified yet, and those of
/// one peer address; further ones wait. They use connections that all requests share.
pub const TRIGGER_LOOKUPS_MAX: usize = 4;
pub const TRIGGER_LOOKUPS_PER_PEER: usize = 2;
/// Time after which a message without a valid signature is answered, unless that took longer: more than a lookup and the
/// verification need, so that the sender cannot tell by it whether the trigger exists.
pub const TRIGGER_REFUSED_AFTER: Duration = Duration::from_millis(50);
/// Min length of a caller-supplied trigger secret, in bytes. The secret is the only authentication
/// of a trigger.
pub const TRIGGER_SECRET_BYTES_MIN: usize = 16;
/// Invoke tokens of one agent.
pub const INVOKE_TOKENS_MAX: i64 = 20;
/// Max length of a name, title or URL that is copied from GitHub, in bytes.
pub const GITHUB_FIELD_BYTES_MAX: usize = 300;
/// Max length of a comment or text that is copied from GitHub, in bytes (GitHub's limit is 65,536
/// characters).
pub const GITHUB_TEXT_BYTES_MAX: usize = 96 << 10;
/// Interval at which due schedules and wakes are polled; a schedule's slot is one minute.
pub const TRIGGER_POLL: Duration = Duration::from_secs(1);
/// Due items that one poll takes; the next poll continues after them.
pub const TRIGGER_BATCH: i64 = 200;
/// Due items that one process handles concurrently, each with a database connection.
pub const TRIGGERS_CONCURRENT_MAX: usize = 4;
/// Max time ahead at which an agent may schedule its own wake.
pub const SCHEDULED_WAKE_AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Pending wakes of one session.
pub const SCHEDULED_WAKES_PENDING_MAX: i64 = 16;
/// Max length of the note of a wake, in characters.
pub const SCHEDULED_WAKE_NOTE_CHARS_MAX: usize = 4_000;
