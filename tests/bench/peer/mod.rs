//! Comparison with Restate: its closest equivalents of creating a session and of a turn without work.
//! `tests/bench/peer` drives it. Without its packages the goal fails; `--without-peer` leaves its lines out of the
//! table.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::Context;
use tokio::{process::Command, time::timeout};

use crate::{
    Bench,
    anchor::{Anchor, Way},
    measure::{Measured, Metric, Target},
    plan::Goal,
    stats::p50_p99,
};

/// Timeouts of the installation of its packages, and of one run.
const INSTALL_MAX: Duration = Duration::from_secs(300);
const RUN_MAX: Duration = Duration::from_secs(120);

/// Invocations per second that Restate accepts from as many callers.
pub async fn created(bench: &Bench, anchor: &Anchor) -> anyhow::Result<Vec<Measured>> {
    let seconds = bench.plan.span().as_secs_f64().max(1.0).to_string();
    let metric = Metric::new(Goal::P4, "for comparison: invocations accepted by Restate", "/s", Target::Told);
    measure(bench, anchor, vec![metric], async || run(&["create", &seconds]).await).await
}

/// Duration of a Restate invocation without work.
pub async fn turns(bench: &Bench, anchor: &Anchor) -> anyhow::Result<Vec<Measured>> {
    let count = bench.plan.size(400, 20).to_string();
    let metrics = ["p50", "p99"].map(|part| {
        let what = format!("for comparison: an invocation without work by Restate, {part}");
        Metric::new(Goal::P6, what, "ms", Target::Told)
    });
    let figures = async || {
        let times = run(&["noop", &count]).await?;
        Ok(p50_p99(times.into_iter().map(|ms| Duration::from_secs_f64(ms / 1_000.0)).collect()))
    };
    measure(bench, anchor, metrics.to_vec(), figures).await
}

async fn measure(
    bench: &Bench,
    anchor: &Anchor,
    metrics: Vec<Metric>,
    figures: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
) -> anyhow::Result<Vec<Measured>> {
    if bench.plan.without_peer {
        println!("  no peer for comparison: --without-peer");
        return Ok(Vec::new());
    }
    install().await.context("no peer for comparison (--without-peer measures without it)")?;
    let span = bench.plan.span();
    bench.measure(metrics, async || anchor.throughput(Way::One, span / 4).await, figures).await
}

/// Installs the packages once.
async fn install() -> anyhow::Result<()> {
    if place().join("node_modules/.package-lock.json").exists() {
        return Ok(());
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(place()).stdin(Stdio::null());
    let status =
        timeout(INSTALL_MAX, npm.kill_on_drop(true).status()).await.context("npm takes too long")??;
    anyhow::ensure!(status.success(), "npm ended with {status}");
    Ok(())
}

/// Runs the peer's driver, which prints one figure per line.
async fn run(arguments: &[&str]) -> anyhow::Result<Vec<f64>> {
    let mut node = Command::new("node");
    node.arg("peer.mjs").args(arguments).current_dir(place()).stdin(Stdio::null()).stderr(Stdio::null());
    let output = timeout(RUN_MAX, node.kill_on_drop(true).output()).await.context("the peer hangs")??;
    anyhow::ensure!(output.status.success(), "the peer ended with {}", output.status);
    // Its SDK may print other lines too.
    let text = String::from_utf8(output.stdout)?;
    let figures: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    anyhow::ensure!(!figures.is_empty(), "the peer printed no figure");
    Ok(figures)
}

fn place() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/bench/peer")
}
