//! Parameters of a run: counts, sizes and the seed that determines everything else.

use std::{sync::Mutex, time::Duration};

use clap::Parser;

/// Kill, freeze and cut a whole deployment, then check every guarantee on its database
#[derive(Clone, Debug, Parser)]
#[command(name = "chaos")]
pub struct Plan {
    /// Determines which process is hit when; the same seed plans the same faults
    #[arg(long)]
    pub seed: Option<u64>,
    /// Processes killed with SIGKILL, a third of them between two writes of a tool call
    #[arg(long, default_value_t = 30)]
    pub kills: u32,
    /// Workers stopped for longer than their lease and continued, half of them between append and exec
    #[arg(long, default_value_t = 10)]
    pub freezes: u32,
    /// Immediate restarts of Postgres
    #[arg(long, default_value_t = 3)]
    pub postgres_restarts: u32,
    /// Workers stopped with SIGTERM and started again
    #[arg(long, default_value_t = 6)]
    pub drains: u32,
    /// Times that all processes are killed and started at one moment
    #[arg(long, default_value_t = 2)]
    pub starts_together: u32,
    /// Links between a process and the database that forward nothing for a while, without a reset
    #[arg(long, default_value_t = 2)]
    pub silences: u32,
    /// Runs of pg_dump, each read slowly
    #[arg(long, default_value_t = 2)]
    pub dumps: u32,
    /// Streams cut, between two frames or inside one, anywhere in a log
    #[arg(long, default_value_t = 500)]
    pub stream_cuts: u64,
    /// Concurrent sessions
    #[arg(long, default_value_t = 12)]
    pub sessions: usize,
    /// Time limit of the faults, in minutes; the run fails when it is reached
    #[arg(long, default_value_t = 10)]
    pub minutes: u64,
    /// Processes with the role `api`
    #[arg(long, default_value_t = 2)]
    pub apis: usize,
    /// Processes with the role `worker`
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
    /// Length of a lease, in milliseconds
    #[arg(long, default_value_t = 1_500)]
    pub lease_ms: u64,
    /// Write the table to docs/reliability.md
    #[arg(long)]
    pub write: bool,
    /// Keep the data directory and the logs
    #[arg(long)]
    pub keep: bool,
}

impl Plan {
    /// Length of a lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// A small random generator shared by many tasks: splitmix64.
pub struct SeededRng(Mutex<u64>);

impl SeededRng {
    /// Creates a generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// Creates a separate generator for a task, so that other tasks do not change its plan.
    pub fn fork(&self) -> Self {
        Self::new(self.next())
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// A duration from `low` to `high` milliseconds.
    pub fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(low + self.below(high.saturating_sub(low) + 1))
    }

    /// True once in `count` calls on average.
    pub fn once_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn next(&self) -> u64 {
        let mut state = self.0.lock().expect("no holder panics");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
