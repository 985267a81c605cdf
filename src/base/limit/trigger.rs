//! Bounds of what starts by itself: schedules, triggers, wakes.

use std::time::Duration;

/// Longest five fields of a schedule, in bytes.
pub const CRON_BYTES_MAX: usize = 200;
/// Schedules of one agent.
pub const SCHEDULES_MAX: i64 = 100;
/// Runs that fail in a row before a schedule is turned off.
pub const SCHEDULE_FAILURES_MAX: i32 = 5;
/// Days that the runs of a schedule are kept.
pub const SCHEDULE_RUN_DAYS: i32 = 30;
/// Hooks of one agent.
pub const TRIGGERS_MAX: i64 = 20;
/// Messages per second that one trigger takes, sustained; four times as many at once.
pub const TRIGGER_MESSAGES_PER_SECOND: u32 = 10;
/// Shortest secret that a caller brings for a trigger, in bytes: it is all that keeps
/// strangers out.
pub const TRIGGER_SECRET_BYTES_MIN: usize = 16;
/// Longest name, title or address that is taken over from GitHub, in bytes.
pub const GITHUB_FIELD_BYTES_MAX: usize = 300;
/// Longest comment or text that is taken over from GitHub, in bytes (it takes 65,536
/// characters).
pub const GITHUB_WORDS_BYTES_MAX: usize = 96 << 10;
/// How often what is due is looked for; a slot is a minute.
pub const TRIGGER_POLL: Duration = Duration::from_secs(1);
/// Due things that one look takes; the next one goes on.
pub const TRIGGER_BATCH: i64 = 200;
/// Due things that one process does at the same time, each with a connection.
pub const TRIGGERS_TOGETHER_MAX: usize = 4;
/// Looks between two rounds of housekeeping.
pub const TRIGGER_TIDY_EVERY: u32 = 60;
/// How far ahead an agent may schedule its own wake.
pub const SCHEDULED_WAKE_AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Wakes that one session may wait for.
pub const SCHEDULED_WAKES_PENDING_MAX: i64 = 16;
/// Longest note of a wake, in characters.
pub const SCHEDULED_WAKE_NOTE_CHARS_MAX: usize = 4_000;
