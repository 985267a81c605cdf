//! Corrects the clock of the process by the clock of the database.
//!
//! Times that one process stores and another compares (retries, deadlines, expiries) would otherwise be wrong by
//! the difference of their machines' clocks.

use std::sync::Arc;

use metrics::gauge;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    base::{
        Clock,
        clock::SteeredClock,
        limit::{CLOCK_CHECK_INTERVAL, CLOCK_DIFFERENCE_MAX},
    },
    store::Store,
};

/// Readings of the database's clock in one check; the fastest one counts.
const READINGS: usize = 3;

/// Compares the clock with that of the database, and corrects it. Does nothing while the database is away.
pub(super) async fn check(store: &Store, clock: &SteeredClock) {
    let mut best = None;
    for _ in 0..READINGS {
        let before = clock.now();
        let read = match store.time().await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "the clock of the database could not be read");
                return;
            }
        };
        let after = clock.now();
        if best.is_none_or(|(before_best, _, after_best)| after - before < after_best - before_best) {
            best = Some((before, read, after));
        }
        if after - before < CLOCK_DIFFERENCE_MAX {
            break;
        }
    }
    if let Some((before, read, after)) = best {
        gauge!("sojourn_clock_difference_seconds").set(clock.steer(before, read, after));
    }
}

/// Checks the clock until `stop`.
pub(super) async fn follow(store: Store, clock: Arc<SteeredClock>, stop: CancellationToken) {
    let mut ticks = interval(CLOCK_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        check(&store, &clock).await;
    }
}
