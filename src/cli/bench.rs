//! `sojourn bench`: load test of a running service, measured by a client.
//!
//! Sessions of a scripted agent run turns that need no provider and no sandbox. Each session is followed
//! through its event stream, so the measured time of a turn is the one that a caller experiences. The
//! sessions are archived at the end.

use std::{
    cell::RefCell,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use futures::{StreamExt, future::join_all};
use serde_json::{Value, json};

use super::{
    client::{Client, Connection},
    print,
};

/// Load and duration.
#[derive(Debug, Args)]
pub(super) struct Load {
    /// Number of concurrent sessions
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    sessions: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Steps per turn; each is one scripted model call
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: u32,
}

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Measurements so far.
#[derive(Default)]
struct Seen {
    turns: Vec<Duration>,
    events: u64,
    failed: Vec<String>,
}

/// Runs the load, prints progress and a summary. The exit code is 1 when a turn failed.
pub(super) async fn run(bench: Load, connection: &Connection) -> anyhow::Result<u8> {
    let client = connection.client()?;
    let agent = json!({ "name": "sojourn bench", "prompt": "Play the script.", "model": "scripted/inline" });
    client.post("/agents", &agent).await.context("an agent on scripted/inline cannot be created")?;
    let mut sessions = Vec::new();
    for _ in 0..bench.sessions {
        let made = client.post("/sessions", &json!({ "agent": "sojourn bench" })).await?;
        sessions.push(made["session"]["id"].as_str().context("an id")?.to_owned());
    }
    let seen = RefCell::new(Seen::default());
    let began = Instant::now();
    let until = began + Duration::from_secs(bench.seconds.into());
    let driven = join_all(sessions.iter().map(|session| drive(&client, session, &bench, until, &seen)));
    tokio::select! {
        _ = driven => {}
        () = print_progress(&seen, began) => {}
    }
    let took = began.elapsed();
    for session in &sessions {
        client.post(&format!("/sessions/{session}/archive"), &json!({})).await?;
    }
    let seen = seen.into_inner();
    summary(&bench, &seen, took, connection.json);
    Ok(u8::from(!seen.failed.is_empty()))
}

/// Runs the turns of one session in sequence; stops at the first failure.
async fn drive(client: &Client, session: &str, bench: &Load, until: Instant, seen: &RefCell<Seen>) {
    let step = json!({ "text": "A step of the benchmark.", "tools": [{ "tool": "none" }] });
    let mut steps = vec![step; bench.steps as usize - 1];
    steps.push(json!({ "text": "Done." }));
    let message = json!({ "text": json!({ "script": steps }).to_string() });
    let mut events = pin!(client.follow(session, "internal", 0));
    while Instant::now() < until {
        let began = Instant::now();
        let turn = async {
            client.post(&format!("/sessions/{session}/messages"), &message).await?;
            loop {
                let event: Value = events.next().await.context("the stream ended")??;
                seen.borrow_mut().events += 1;
                if event["type"] == "turn.completed" {
                    let reason = event["body"]["yield_reason"].as_str().unwrap_or_default();
                    anyhow::ensure!(reason == "completed", "the turn ended {reason}");
                    return anyhow::Ok(());
                }
            }
        };
        if let Err(error) = turn.await {
            return seen.borrow_mut().failed.push(format!("{session}: {error:#}"));
        }
        seen.borrow_mut().turns.push(began.elapsed());
    }
}

/// Prints a progress line every second until the load ends.
async fn print_progress(seen: &RefCell<Seen>, began: Instant) {
    let mut told = 0;
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let seen = seen.borrow();
        let mut newest = seen.turns[told..].to_vec();
        told = seen.turns.len();
        eprintln!(
            "{:>5.0} s  {:>8} turns  {:>7} turns/s  p50 {:>8.1} ms  p99 {:>8.1} ms  {} failed",
            began.elapsed().as_secs_f64(),
            told,
            newest.len(),
            percentile(&mut newest, 50),
            percentile(&mut newest, 99),
            seen.failed.len()
        );
    }
}

fn summary(bench: &Load, seen: &Seen, took: Duration, is_json: bool) {
    let mut turns = seen.turns.clone();
    let seconds = took.as_secs_f64();
    let rate = |count: usize| (count as f64 / seconds * 10.0).round() / 10.0;
    let ms = |turns: &mut Vec<Duration>, part| (percentile(turns, part) * 10.0).round() / 10.0;
    let document = json!({
        "sessions": bench.sessions,
        "seconds": (seconds * 10.0).round() / 10.0,
        "turns": turns.len(),
        "turns_per_second": rate(turns.len()),
        "events_per_second": rate(seen.events as usize),
        "turn_p50_ms": ms(&mut turns, 50),
        "turn_p99_ms": ms(&mut turns, 99),
        "turn_longest_ms": ms(&mut turns, 100),
        "failed": seen.failed,
    });
    if is_json {
        return print::document(&document);
    }
    let word =
        |value: &Value| value.as_array().map_or_else(|| value.to_string(), |all| all.len().to_string());
    let rows: Vec<_> = document
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| vec![name.replace('_', " "), word(value)])
        .collect();
    print::table(&["METRIC", "VALUE"], &rows);
    seen.failed.iter().for_each(|failed| print::line(failed));
}

/// Percentile in milliseconds; 0 without measurements.
fn percentile(times: &mut [Duration], part: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len().saturating_sub(1) * part).div_ceil(100);
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
}
