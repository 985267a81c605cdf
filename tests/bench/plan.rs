//! Parameters of a run: goals, repeats, sizes.

use std::{fmt, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};

use crate::GOALS;

/// Measure the service beside the raw database, goal by goal
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
pub struct Plan {
    /// Goals to measure; all of them when none is given
    #[arg(value_enum, ignore_case = true)]
    pub named: Vec<Goal>,
    /// Accepted repeats of each measurement
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Length of one throughput measurement, in seconds
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// One short repeat of each goal, about a minute in total: only shows that everything runs
    #[arg(long)]
    pub quick: bool,
    /// Sessions of the large case of P11
    #[arg(long, default_value_t = 10_000_000)]
    pub growth_sessions: u64,
    /// Leave out the comparison with Restate, whose packages come from npm
    #[arg(long)]
    pub without_peer: bool,
    /// Write docs/performance.md and its plots; with some goals only, their rows of the page
    #[arg(long)]
    pub write: bool,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve the bare HTTP process that P4 is compared with
    #[command(hide = true)]
    Bare {
        #[arg(long)]
        url: String,
    },
    /// Measure resources of unused sandboxes: many frozen ones, many hibernated sessions
    Sandboxes(crate::sandboxes::Sandboxes),
    /// Measure an ordinary session beside others that take all that they can get of one resource
    Neighbors(crate::neighbors::Neighbors),
    /// Measure many API and worker processes on one Postgres: messages per second, work per message
    Fleet(crate::fleet::Fleet),
}

/// A line of the table of goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Goal {
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    P7,
    P8,
    P9,
    P10,
    P11,
    P12,
    P13,
    P14,
}

impl Plan {
    /// Goals of this run. P1 and P2 are one measurement, reported on two lines.
    pub fn goals(&self) -> Vec<Goal> {
        let named = if self.named.is_empty() { GOALS.to_vec() } else { self.named.clone() };
        let both = named.contains(&Goal::P1);
        named.into_iter().filter(|goal| !(both && *goal == Goal::P2)).collect()
    }

    /// Length of one throughput measurement.
    pub fn span(&self) -> Duration {
        if self.quick { Duration::from_millis(500) } else { Duration::from_secs_f64(self.seconds) }
    }

    /// Repeats that must be accepted.
    pub fn accepted(&self) -> usize {
        if self.quick { 1 } else { self.repeats }
    }

    /// A size, or its replacement in a quick run.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

impl Goal {
    /// Description of the goal.
    pub fn what(self) -> &'static str {
        match self {
            Self::P1 => "durable events a second through a leased turn, 64 busy sessions",
            Self::P2 => "processor time per event, service and Postgres",
            Self::P3 => "a single append",
            Self::P4 => "POST /v3/sessions at 16 clients",
            Self::P5 => "from a steer to the worker's model request",
            Self::P6 => "a turn without work, end to end",
            Self::P7 => "appends with live streams on",
            Self::P8 => "from the commit to the reader of a stream",
            Self::P9 => "an idle session",
            Self::P10 => "a worker is killed with a thousand running turns",
            Self::P11 => "growth to millions of sessions",
            Self::P12 => "webhooks to a local receiver",
            Self::P13 => "commands in sandboxes",
            Self::P14 => "a turn that waits for its caller",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
