//! Retry schedule of deliveries. Pure: no I/O, no clock.
//!
//! Called by the dispatcher after each [`super::send`]. Ten attempts over three days, as recommended by
//! Standard Webhooks; then the delivery is dead until it is redelivered on request.

use std::time::Duration;

use super::send::Outcome;
use crate::base::{
    Origin,
    limit::{WEBHOOK_JITTER, WEBHOOK_RETRY_AFTER_SECONDS_MAX, WEBHOOK_RETRY_SECONDS},
};

/// Next state of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// 2xx: delivered.
    Delivered,
    /// Retry, not before this time has passed.
    Retry { after: Duration },
    /// The last attempt failed.
    Dead,
    /// 410: the receiver wants no more deliveries. The delivery is dead, and the destination is disabled
    /// until its owner enables it.
    DisableDestination,
}

/// Decides after attempt number `tries` of a delivery, counted from 1.
pub fn next(tries: u32, outcome: &Outcome, origin: &Origin) -> Next {
    match outcome.status {
        Some(200..300) => Next::Delivered,
        Some(410) => Next::DisableDestination,
        Some(_) | None => match WEBHOOK_RETRY_SECONDS.get(tries as usize) {
            Some(&seconds) => Next::Retry { after: delay(seconds, outcome.retry_after, origin) },
            None => Next::Dead,
        },
    }
}

/// Returns the scheduled delay with jitter, or a longer one if the receiver requests it.
///
/// A shorter `Retry-After` is ignored, because the schedule limits the sender's load.
fn delay(seconds: u64, retry_after: Option<Duration>, origin: &Origin) -> Duration {
    let scheduled = Duration::from_secs(seconds).mul_f64(1.0 + WEBHOOK_JITTER * origin.fraction());
    let longest = Duration::from_secs(WEBHOOK_RETRY_AFTER_SECONDS_MAX);
    let asked = retry_after.unwrap_or_default().min(longest);
    scheduled.max(asked)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use time::macros::datetime;

    use super::*;
    use crate::base::{clock::ManualClock, entropy::SeededEntropy};

    fn origin(seed: u64) -> Origin {
        let clock = ManualClock::at(datetime!(2026-11-01 08:00:00 UTC));
        Origin::new(Arc::new(clock), Arc::new(SeededEntropy::new(seed)))
    }

    fn outcome(status: Option<u16>, retry_after_seconds: Option<u64>) -> Outcome {
        let retry_after = retry_after_seconds.map(Duration::from_secs);
        Outcome { status, error: None, duration: Duration::ZERO, retry_after }
    }

    fn seconds_until(next: Next) -> f64 {
        match next {
            Next::Retry { after } => after.as_secs_f64(),
            Next::Delivered | Next::Dead | Next::DisableDestination => panic!("not a retry: {next:?}"),
        }
    }

    #[test]
    fn a_2xx_is_success_and_nothing_else_is() {
        for status in [200, 201, 204, 299] {
            assert_eq!(next(1, &outcome(Some(status), None), &origin(1)), Next::Delivered);
        }
        for status in [Some(100), Some(301), Some(400), Some(404), Some(429), Some(500), None] {
            assert!(matches!(next(1, &outcome(status, None), &origin(1)), Next::Retry { .. }), "{status:?}");
        }
    }

    #[test]
    fn a_410_disables_the_destination_at_any_try() {
        for tries in [1, 10, 11] {
            assert_eq!(next(tries, &outcome(Some(410), Some(5)), &origin(1)), Next::DisableDestination);
        }
    }

    #[test]
    fn ten_attempts_take_three_days_and_then_the_delivery_is_dead() {
        let delays = [5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0];
        for seed in 0..50 {
            let mut total = 0.0;
            for (tries, scheduled) in (1..).zip(delays) {
                let waited = seconds_until(next(tries, &outcome(None, None), &origin(seed)));
                assert!(waited >= scheduled && waited <= scheduled * 1.1, "try {tries}: {waited} s");
                total += waited;
            }
            assert!(total >= 3.0 * 86_400.0, "{total} s");
            assert_eq!(next(10, &outcome(Some(500), Some(60)), &origin(seed)), Next::Dead);
            assert_eq!(next(u32::MAX, &outcome(None, None), &origin(seed)), Next::Dead);
        }
    }

    #[test]
    fn deliveries_that_failed_together_are_not_retried_together() {
        let first = seconds_until(next(2, &outcome(None, None), &origin(1)));
        let second = seconds_until(next(2, &outcome(None, None), &origin(2)));
        assert_ne!(first, second);
    }

    #[test]
    fn retry_after_lengthens_a_delay_up_to_a_day() {
        let asked = |seconds| seconds_until(next(1, &outcome(Some(429), Some(seconds)), &origin(1)));
        assert!(asked(1) >= 5.0 && asked(1) <= 5.5);
        assert_eq!(asked(600), 600.0);
        assert_eq!(asked(u64::MAX), 86_400.0);
    }
}
