//! P10: the worker that holds 1,000 turns is killed; another one is running.

use serde_json::json;
use sqlx::Connection;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    Bench,
    anchor::{Anchor, Way},
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
};

/// Length of a lease during the measurement.
const LEASE: Duration = Duration::from_secs(5);
/// The goal: this much beyond the lease, in seconds.
const BEYOND: f64 = 2.0;

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let count = bench.plan.size(1_000, 50);
    let span = bench.plan.span();
    let anchor = Anchor::open(bench).await?;
    let metrics = vec![Metric::new(
        Goal::P10,
        format!("{count} turns resumed, time beyond the lease"),
        "s",
        Target::AtMost(BEYOND),
    )];
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || Ok(vec![takeover(bench, count).await?]),
        )
        .await?;
    anchor.close().await;
    Ok(measured)
}

async fn takeover(bench: &Bench, count: usize) -> anyhow::Result<f64> {
    let (lease, workers) =
        (format!("--lease-ms={}", LEASE.as_millis()), format!("--max-concurrent-turns={count}"));
    let api = bench.ground.serve(&["--role=api", &lease]).await?;
    let doomed = bench.ground.serve(&["--role=worker", &lease, &workers]).await?;
    let caller = Caller::of(api.address)?;
    let agent = caller.agent().await?;
    // A model call that takes longer than the measurement.
    let script = json!({ "script": [{ "text": "At last.", "delay_ms": 600_000 }] });
    for _ in 0..count {
        caller.session(&agent, Some(&script)).await?;
    }
    running(bench, 1, count).await?;
    let heir = bench.ground.serve(&["--role=worker", &lease, &workers]).await?;
    // A worker takes nothing over before the database has answered it for the length of a lease.
    sleep(LEASE + Duration::from_secs(1)).await;
    let killed = Instant::now();
    doomed.kill().await?;
    running(bench, 2, count).await?;
    let took = killed.elapsed();
    end(bench).await?;
    heir.stop().await?;
    api.stop().await?;
    Ok(took.saturating_sub(LEASE).as_secs_f64())
}

/// Waits until this many turns run in this attempt.
async fn running(bench: &Bench, attempt: i32, count: usize) -> anyhow::Result<()> {
    let mut connection = bench.ground.connection().await?;
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let (running,): (i64,) =
            sqlx::query_as("select count(*) from turn where state = 'running' and attempt = $1")
                .bind(attempt)
                .fetch_one(&mut connection)
                .await?;
        if running as usize >= count {
            return Ok(connection.close().await?);
        }
        anyhow::ensure!(Instant::now() < until, "only {running} of {count} turns run in attempt {attempt}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Cancels every turn, and waits for their ends.
async fn end(bench: &Bench) -> anyhow::Result<()> {
    let mut connection = bench.ground.connection().await?;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (left,): (i64,) = sqlx::query_as(
            "with asked as (
                update session set cancel_turn_id = running_turn_id where running_turn_id is not null
             )
             select count(*) from turn where state = 'running'",
        )
        .fetch_one(&mut connection)
        .await?;
        if left == 0 {
            return Ok(connection.close().await?);
        }
        anyhow::ensure!(Instant::now() < until, "{left} turns do not end");
        sleep(Duration::from_millis(200)).await;
    }
}
