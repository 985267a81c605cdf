//! What a run does: counts, sizes and the seed that decides everything else.

use std::{sync::Mutex, time::Duration};

use clap::Parser;

/// Kill, freeze and cut a whole deployment, then check every promise on its database.
#[derive(Clone, Debug, Parser)]
#[command(name = "chaos")]
pub struct Plan {
    /// Decides which process is hit when; the same seed plans the same faults
    #[arg(long)]
    pub seed: Option<u64>,
    /// Processes ended with KILL, a third of them between two writes of a tool call
    #[arg(long, default_value_t = 30)]
    pub kills: u32,
    /// Workers stopped beyond their lease and continued, half of them between append and exec
    #[arg(long, default_value_t = 10)]
    pub freezes: u32,
    /// Immediate restarts of Postgres
    #[arg(long, default_value_t = 3)]
    pub postgres_restarts: u32,
    /// Workers asked to stop with TERM and started again
    #[arg(long, default_value_t = 6)]
    pub drains: u32,
    /// Streams cut, by turns at a frame's boundary and inside a frame
    #[arg(long, default_value_t = 500)]
    pub stream_cuts: u64,
    /// Sessions that are driven at the same time
    #[arg(long, default_value_t = 12)]
    pub sessions: usize,
    /// Ends the faults after so many minutes, done or not; that fails the run
    #[arg(long, default_value_t = 10)]
    pub minutes: u64,
    /// Processes of the role `api`
    #[arg(long, default_value_t = 2)]
    pub apis: usize,
    /// Processes of the role `worker`
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
    /// Length of a lease, in milliseconds
    #[arg(long, default_value_t = 1_500)]
    pub lease_ms: u64,
    /// Write the table to docs/reliability.md
    #[arg(long)]
    pub write: bool,
    /// Leave the data directory and the logs where they are
    #[arg(long)]
    pub keep: bool,
}

impl Plan {
    /// Length of a lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// A small generator that many tasks draw from: splitmix64.
pub struct Dice(Mutex<u64>);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// Dice of a task's own, so that another task's luck does not change its plan.
    pub fn fork(&self) -> Self {
        Self::new(self.next())
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// A time from `low` to `high` milliseconds.
    pub fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(low + self.below(high.saturating_sub(low) + 1))
    }

    /// True once in `count` throws.
    pub fn once_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn next(&self) -> u64 {
        let mut state = self.0.lock().expect("no thrower panics");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
