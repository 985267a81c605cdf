//! What happened in a run, in numbers.

use std::time::Duration;

/// Counts for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub events: u64,
    pub turns: u64,
    pub takeovers: u64,
    pub steps: u64,
    pub compactions: u64,
    pub calls: u64,
    pub unknown: u64,
    pub exhausted: u64,
    pub waits: u64,
    pub answers: u64,
    pub expired: u64,
    pub steers: u64,
    pub retries: u64,
    pub fallbacks: u64,
    pub elicitations: u64,
    pub slowest_cancel: Duration,
    pub worst_overshoot: Duration,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, mut one: Self) {
        self.slowest_cancel = self.slowest_cancel.max(one.slowest_cancel);
        self.worst_overshoot = self.worst_overshoot.max(one.worst_overshoot);
        for (sum, count) in self.sums().into_iter().zip(one.sums()) {
            *sum += *count;
        }
    }

    /// All of them but the two maxima.
    fn sums(&mut self) -> [&mut u64; 15] {
        let Self {
            events,
            turns,
            takeovers,
            steps,
            compactions,
            calls,
            unknown,
            exhausted,
            waits,
            answers,
            expired,
            steers,
            retries,
            fallbacks,
            elicitations,
            slowest_cancel: _,
            worst_overshoot: _,
        } = self;
        [
            events,
            turns,
            takeovers,
            steps,
            compactions,
            calls,
            unknown,
            exhausted,
            waits,
            answers,
            expired,
            steers,
            retries,
            fallbacks,
            elicitations,
        ]
    }
}
