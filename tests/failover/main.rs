//! Failover test: a deployment of real processes under load while its database moves, its link is cut, or it is
//! upgraded. Everything that it acknowledged is then looked for in the database.
//!
//! `cargo test --test failover -- --help` lists the scenarios. Needs root. The exit code is 1 when anything was
//! lost, doubled or stuck.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that fails may panic, and its tasks end with its process"
)]
#![allow(unreachable_pub, reason = "nothing imports from a test")]

mod cluster;
mod deployment;
mod failover;
mod judge;
mod ledger;
mod load;
mod namespace;
mod partition;
mod postgres;
mod process;
mod reader;
mod report;
#[path = "../bench/run.rs"]
mod run;
mod upgrade;

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::{deployment::Ground, load::Shape, report::Row, run::Run, upgrade::Revision};

/// A deployment of real processes under load while its database moves, its link is cut, or it is upgraded.
#[derive(Clone, Debug, Parser)]
struct Plan {
    #[command(subcommand)]
    scenario: Scenario,
    /// Keep data and logs
    #[arg(long, global = true)]
    keep: bool,
    /// Write the table to docs/reliability.md if nothing was found
    #[arg(long, global = true)]
    write: bool,
    /// Sessions at a time
    #[arg(long, global = true, default_value_t = 6)]
    sessions: usize,
}

#[derive(Clone, Debug, Subcommand)]
enum Scenario {
    /// Upgrade process after process from an earlier revision, and back
    Upgrade {
        /// Commits of tests/failover/revisions.txt; all when absent
        commits: Vec<String>,
        /// Only the newest of them
        #[arg(long)]
        newest: bool,
        /// Accepted writes between two steps
        #[arg(long, default_value_t = 12)]
        pace: usize,
    },
    /// Cut the link of a machine to the database without a reset
    Partition {
        /// Cuts, before one for good
        #[arg(long, default_value_t = 2)]
        cuts: u32,
        /// Length of a cut
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Move the database to another node: switchovers and kills of the leader, under Patroni
    Failover {
        /// Faults with each kind of replication
        #[arg(long, default_value_t = 20)]
        faults: u32,
        /// Only with this kind of replication
        #[arg(long)]
        replication: Option<Replication>,
    },
}

/// Kind of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Replication {
    Synchronous,
    Asynchronous,
}

#[tokio::main]
async fn main() -> ExitCode {
    let plan = Plan::parse();
    sojourn::net::install_tls();
    match run(&plan).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(violations) => {
            eprintln!("{violations} violations");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the scenario. Returns the number of violations.
async fn run(plan: &Plan) -> anyhow::Result<usize> {
    let version =
        tokio::process::Command::new(postgres::program("postgres")?).arg("--version").output().await?;
    let version = String::from_utf8(version.stdout)?;
    let described = Run::new("failover", version.split_whitespace().nth(2).context("a version")?)?;
    let (name, rows) = match &plan.scenario {
        Scenario::Upgrade { commits, newest, pace } => {
            let all = upgrade::revisions()?;
            let begin = if *newest { all.len().saturating_sub(1) } else { 0 };
            ("upgrade", upgrades(plan, &all[begin..], commits, *pace).await?)
        }
        Scenario::Partition { cuts, seconds } => {
            let shape = Shape { drivers: plan.sessions, has_sandboxes: false, may_lose: false };
            let length = Duration::from_secs(*seconds);
            let row =
                on_ground(plan, async |ground| partition::partition(*cuts, length, ground, shape).await);
            ("partition", vec![row.await?])
        }
        Scenario::Failover { faults, replication } => {
            ("failover", failovers(plan, *faults, *replication).await?)
        }
    };
    let table = report::table(&described, &rows);
    println!("\n{table}");
    let violations: usize = rows.iter().map(|row| row.load.ledger.violations().len()).sum();
    if plan.write && violations == 0 {
        report::publish(name, &table)?;
    }
    Ok(violations)
}

async fn upgrades(
    plan: &Plan,
    revisions: &[Revision],
    commits: &[String],
    pace: usize,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let shape = Shape { drivers: plan.sessions, has_sandboxes: true, may_lose: false };
    for revision in revisions {
        if commits.is_empty() || commits.contains(&revision.commit) {
            println!("upgrade from {revision}");
            let row = on_ground(plan, async |ground| upgrade::upgrade(revision, ground, shape, pace).await);
            rows.push(row.await?);
        }
    }
    anyhow::ensure!(!rows.is_empty(), "no such revision in tests/failover/revisions.txt");
    Ok(rows)
}

async fn failovers(plan: &Plan, faults: u32, only: Option<Replication>) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for replication in [Replication::Synchronous, Replication::Asynchronous] {
        if only.is_some_and(|only| only != replication) {
            continue;
        }
        let is_synchronous = replication == Replication::Synchronous;
        let shape = Shape { drivers: plan.sessions, has_sandboxes: false, may_lose: !is_synchronous };
        let row =
            on_ground(plan, async |ground| failover::failover(faults, is_synchronous, ground, shape).await);
        rows.push(row.await?);
    }
    Ok(rows)
}

/// Runs a scenario in directories of its own; ends when asked to stop.
async fn on_ground(
    plan: &Plan,
    scenario: impl AsyncFnOnce(&Ground) -> anyhow::Result<Row>,
) -> anyhow::Result<Row> {
    let ground = Ground::new()?;
    let row = tokio::select! {
        row = scenario(&ground) => row,
        stopped = tokio::signal::ctrl_c() => Err(stopped.err().map_or_else(
            || anyhow::anyhow!("asked to stop"), anyhow::Error::from)),
    };
    let has_failed = row.as_ref().map_or(true, |row| !row.load.ledger.violations().is_empty());
    ground.clear(plan.keep || has_failed).await?;
    row
}
