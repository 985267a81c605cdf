//! Benchmark: raw database figures, the service's figures, and whether each goal of docs/performance.md is
//! met on this machine.
//!
//! `make bench` runs it in release; `cargo test --test bench -- --help` lists the parameters. Every figure is
//! reported beside a raw anchor that was measured just before and just after it on the same server. The
//! benchmark fails on an error only, never because of a figure.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that fails may panic, and its tasks end with its process"
)]
#![allow(unreachable_pub, reason = "nothing imports from a test")]

mod anchor;
mod bare;
mod cpu;
mod fleet;
mod goals;
mod ground;
mod http;
mod measure;
mod neighbors;
mod page;
mod peer;
mod plan;
mod plot;
mod raw;
mod report;
mod rig;
mod run;
mod sandboxes;
mod stats;

use std::process::ExitCode;

use clap::Parser;

use crate::{
    ground::Ground,
    plan::{Command, Goal, Plan},
    report::Report,
};

/// Input of a goal.
pub struct Bench {
    pub plan: Plan,
    pub ground: Ground,
}

fn main() -> ExitCode {
    let plan = Plan::parse();
    sojourn::net::install_tls();
    let runtime = tokio::runtime::Runtime::new().expect("a machine that can run tasks");
    let ran = match &plan.command {
        Some(Command::Bare { url }) => runtime.block_on(bare::serve(url)),
        Some(Command::Sandboxes(plan)) => runtime.block_on(sandboxes::run(plan)),
        Some(Command::Neighbors(plan)) => runtime.block_on(neighbors::run(plan)),
        Some(Command::Fleet(plan)) => runtime.block_on(fleet::run(plan)),
        None => runtime.block_on(run(plan)),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(plan: Plan) -> anyhow::Result<()> {
    let ground = Ground::start().await?;
    let bench = Bench { plan, ground };
    let mut report = Report::new(&bench).await?;
    let mut failed = Vec::new();
    for goal in bench.plan.goals() {
        println!("\n{goal}: {}", goal.what());
        bench.ground.vacuum().await?;
        match goals::run(&bench, goal).await {
            Ok(measured) => report.add(measured),
            Err(error) => {
                println!("  could not be measured: {error:#}");
                report.skip(goal, format!("{error:#}"));
                // A goal that cannot run here is reported as such; an error is a failure. A quick run shows
                // that every measurement works, so it needs all.
                let is_excused = error.downcast_ref::<NotNow>().is_some()
                    || !bench.plan.quick && error.downcast_ref::<NotHere>().is_some();
                if !is_excused {
                    failed.push(goal.to_string());
                }
            }
        }
    }
    println!("\n{}", report.table());
    if bench.plan.write {
        report.write()?;
    }
    bench.ground.clear().await?;
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The machine is too busy for a measurement, as the text explains.
#[derive(Debug, thiserror::Error)]
#[error("not now: {0}")]
pub struct NotNow(pub String);

/// This machine lacks a requirement of a goal, which the text names.
#[derive(Debug, thiserror::Error)]
#[error("not on this machine: {0}")]
pub struct NotHere(pub String);

/// All goals, in the order of the table.
pub const GOALS: [Goal; 14] = [
    Goal::P1,
    Goal::P2,
    Goal::P3,
    Goal::P4,
    Goal::P5,
    Goal::P6,
    Goal::P7,
    Goal::P8,
    Goal::P9,
    Goal::P10,
    Goal::P11,
    Goal::P12,
    Goal::P13,
    Goal::P14,
];
