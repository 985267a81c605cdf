//! Cron schedules: due times, runs, session templates. Pure: the time is an argument.
//!
//! Called by `http` where a schedule is stored, and by `trigger` where it fires. `croner` parses
//! the fields and handles daylight saving time. A fixed time in the skipped hour runs at the first
//! moment after the gap; a fixed time in the repeated hour runs once. Intervals skip the gap and
//! run in both hours.

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Zoned, tz::TimeZone};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{environment::EnvironmentChoice, session::Limits};
use crate::base::Timestamp;

/// A parsed cron expression in a time zone.
#[derive(Clone, Debug)]
pub(crate) struct CronSchedule {
    cron: Cron,
    zone: TimeZone,
}

/// Reason why cron fields and a time zone are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidCron {
    /// The number of fields is not five, or a field is invalid.
    #[error("must be five fields (minute, hour, day of month, month, day of week): {0}")]
    Cron(String),
    /// The expression matches no date, such as February 30.
    #[error("never matches any date")]
    Never,
    #[error("must be the name of an IANA time zone, such as `Europe/Zurich` or `UTC`")]
    TimeZone,
}

/// A slot to fire now, and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The latest slot that is due; earlier missed slots are not made up for.
    pub slot: Timestamp,
    pub next: Option<Timestamp>,
}

/// Handling of a slot while the previous run is still active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Skip the slot.
    #[default]
    Skip,
    /// Start a concurrent run.
    Allow,
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Its turn is queued or running.
    Started,
    /// Its turn completed.
    Completed,
    /// It could not start, or its turn ended in an error or was refused.
    Failed,
    /// Skipped because the previous run was still active.
    Skipped,
}

/// Settings of a session that a schedule, trigger or invoke token creates, besides its agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionTemplate {
    pub title: Option<String>,
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    pub environment: Option<EnvironmentChoice>,
}

impl CronSchedule {
    /// Parses five cron fields and an IANA time zone name.
    pub(crate) fn parse(cron: &str, time_zone: &str) -> Result<Self, InvalidCron> {
        let zone = TimeZone::get(time_zone).map_err(|_| InvalidCron::TimeZone)?;
        let fields = cron.split_whitespace().count();
        if fields != 5 {
            return Err(InvalidCron::Cron(format!("got {fields}")));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(cron).map_err(|error| InvalidCron::Cron(error.to_string()))?;
        Ok(Self { cron, zone })
    }

    /// Returns the first slot after `at`.
    pub(crate) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        timestamp(&self.cron.find_next_occurrence(&self.zoned(at)?, false).ok()?)
    }

    /// Returns the action at `now` for a schedule whose next slot was `waited_for`.
    pub(crate) fn due(&self, waited_for: Timestamp, now: Timestamp) -> Due {
        let latest = self.zoned(now).and_then(|now| self.cron.find_previous_occurrence(&now, true).ok());
        let latest = latest.as_ref().and_then(timestamp).filter(|latest| (waited_for..=now).contains(latest));
        Due { slot: latest.unwrap_or(waited_for), next: self.next_after(now) }
    }

    /// Truncates to whole seconds; slots have no fractions.
    fn zoned(&self, at: Timestamp) -> Option<Zoned> {
        let at = jiff::Timestamp::from_second(at.unix_timestamp()).ok()?;
        Some(at.to_zoned(self.zone.clone()))
    }
}

fn timestamp(at: &Zoned) -> Option<Timestamp> {
    OffsetDateTime::from_unix_timestamp(at.timestamp().as_second()).ok()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn slots(cron: &str, zone: &str, mut at: Timestamp, count: usize) -> Vec<Timestamp> {
        let cadence = CronSchedule::parse(cron, zone).expect("a cadence");
        let mut slots = Vec::new();
        for _ in 0..count {
            at = cadence.next_after(at).expect("another slot");
            slots.push(at);
        }
        slots
    }

    #[test]
    fn slots_are_read_in_the_time_zone() {
        let noon = datetime!(2026-01-15 12:00 UTC);
        assert_eq!(
            slots("30 9 * * MON-FRI", "America/New_York", noon, 3),
            [
                datetime!(2026-01-15 14:30 UTC),
                datetime!(2026-01-16 14:30 UTC),
                datetime!(2026-01-19 14:30 UTC)
            ]
        );
        // The next slot is strictly later; fractions of a second are ignored.
        assert_eq!(slots("0 12 * * *", "UTC", noon, 1), [datetime!(2026-01-16 12:00 UTC)]);
        let late = datetime!(2026-01-15 12:00:00.25 UTC);
        assert_eq!(slots("0 12 * * *", "UTC", late, 1), [datetime!(2026-01-16 12:00 UTC)]);
    }

    #[test]
    fn a_fixed_time_that_the_clocks_skip_runs_right_after_the_gap() {
        // In Stockholm the clocks went from 02:00 to 03:00.
        let before = datetime!(2025-03-29 12:00 UTC);
        assert_eq!(
            slots("30 2 * * *", "Europe/Stockholm", before, 2),
            [datetime!(2025-03-30 01:00 UTC), datetime!(2025-03-31 00:30 UTC)]
        );
        // An interval skips the gap.
        let before = datetime!(2025-03-30 00:45 UTC);
        assert_eq!(
            slots("*/30 * * * *", "Europe/Stockholm", before, 2),
            [datetime!(2025-03-30 01:00 UTC), datetime!(2025-03-30 01:30 UTC)]
        );
    }

    #[test]
    fn a_fixed_time_that_the_clocks_repeat_runs_once() {
        // In Stockholm the clocks went from 03:00 back to 02:00.
        let before = datetime!(2025-10-25 12:00 UTC);
        assert_eq!(
            slots("30 2 * * *", "Europe/Stockholm", before, 2),
            [datetime!(2025-10-26 00:30 UTC), datetime!(2025-10-27 01:30 UTC)]
        );
        // An interval runs in both hours.
        let before = datetime!(2025-10-25 23:45 UTC);
        assert_eq!(
            slots("*/30 * * * *", "Europe/Stockholm", before, 5),
            [
                datetime!(2025-10-26 00:00 UTC),
                datetime!(2025-10-26 00:30 UTC),
                datetime!(2025-10-26 01:00 UTC),
                datetime!(2025-10-26 01:30 UTC),
                datetime!(2025-10-26 02:00 UTC),
            ]
        );
    }

    #[test]
    fn of_all_missed_slots_the_latest_is_due() {
        let cadence = CronSchedule::parse("0 * * * *", "UTC").expect("a cadence");
        let waited_for = datetime!(2026-01-01 01:00 UTC);
        let due = |now| cadence.due(waited_for, now);
        assert_eq!(
            due(datetime!(2026-01-09 17:20:03.5 UTC)),
            Due { slot: datetime!(2026-01-09 17:00 UTC), next: Some(datetime!(2026-01-09 18:00 UTC)) }
        );
        assert_eq!(due(waited_for), Due { slot: waited_for, next: Some(datetime!(2026-01-01 02:00 UTC)) });
        // The fields changed in the meantime; the slot that was waited for is still due.
        let daily = CronSchedule::parse("0 0 * * *", "UTC").expect("a cadence");
        let due = daily.due(waited_for, datetime!(2026-01-01 01:00:02 UTC));
        assert_eq!(due, Due { slot: waited_for, next: Some(datetime!(2026-01-02 00:00 UTC)) });
    }

    #[test]
    fn a_gap_is_caught_up_with_at_its_own_moment() {
        let cadence = CronSchedule::parse("30 2 * * *", "Europe/Stockholm").expect("a cadence");
        let slot = datetime!(2025-03-30 01:00 UTC);
        for now in [slot, datetime!(2025-03-30 01:00:00.9 UTC), datetime!(2025-03-30 09:00 UTC)] {
            let due = cadence.due(slot, now);
            assert_eq!((due.slot, due.next), (slot, Some(datetime!(2025-03-31 00:30 UTC))), "{now}");
        }
    }

    #[test]
    fn what_is_no_cadence_is_refused_with_its_reason() {
        for cron in ["", "* * * *", "* * * * * *", "@daily", "61 * * * *", "* * * * MOO", "a b c d e"] {
            let refused = CronSchedule::parse(cron, "UTC").err();
            assert!(matches!(refused, Some(InvalidCron::Cron(_))), "{cron}: {refused:?}");
        }
        for zone in ["", "Mars/Olympus", "+02:00", "europe"] {
            assert_eq!(CronSchedule::parse("0 0 * * *", zone).err(), Some(InvalidCron::TimeZone), "{zone}");
        }
        let never = CronSchedule::parse("0 0 30 2 *", "UTC").expect("well formed");
        assert_eq!(never.next_after(datetime!(2026-01-01 00:00 UTC)), None);
    }
}
