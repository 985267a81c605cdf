//! P7 and P8: cost of streams for writers, and delay of streams.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use sojourn::{
    base::Origin,
    domain::Level,
    stream::{Streams, Tail},
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Bench,
    anchor::{Anchor, Way},
    cpu,
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
    rig::{self, Busy, Rig},
    stats::p50_p99,
};

/// Sessions that append concurrently, each with a reader.
const BUSY: usize = 64;
/// Events per second of all streams of P8 together.
const EVENTS_PER_SECOND: u64 = 500;

/// P7: the same appends without and with a reader on each session.
pub async fn throughput(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let span = bench.plan.span();
    let mut rig = Rig::open(bench).await?;
    let busy = rig.busy(BUSY).await?;
    let metrics = vec![Metric::new(
        Goal::P7,
        "one event at a time, each session read",
        "events/s",
        Target::RatioAtLeast(0.90),
    )];
    let measured = bench
        .measure(
            metrics,
            async || Ok(vec![rig::drive(&busy, 1, span).await?]),
            async || {
                let stop = CancellationToken::new();
                let streams = Streams::new(
                    rig.store.clone(),
                    rig.notifications.clone(),
                    Origin::system(),
                    stop.clone(),
                );
                let mut readers = JoinSet::new();
                for busy in &busy {
                    // Starts at the newest event, so that no old event is measured.
                    let after = busy.append(1).await?;
                    let tail = Tail {
                        org: rig.org,
                        session: busy.session,
                        after,
                        level: Level::Internal,
                        kind: None,
                        turn: None,
                        deltas: false,
                    };
                    let mut frames = streams.follow(tail)?;
                    readers.spawn(async move { while frames.recv().await.is_some() {} });
                }
                let per_second = rig::drive(&busy, 1, span).await?;
                stop.cancel();
                while readers.join_next().await.is_some() {}
                streams.drained().await;
                Ok(vec![per_second])
            },
        )
        .await?;
    rig.close().await?;
    Ok(measured)
}

/// P8: writers in one process, 1,000 readers of another process's streams.
pub async fn latency(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let count = bench.plan.size(1_000, 100);
    let anchor = Anchor::open(bench).await?;
    let service = bench.ground.serve(&["--role=api"]).await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    for _ in 0..count {
        caller.session(&agent, Some(&json!("begin"))).await?;
    }
    let mut rig = Rig::beside(bench).await?;
    let busy = rig.claim(count).await?;
    let before = cpu::memory(service.pid)?;
    let seen = Arc::new(Seen::default());
    let mut readers = read(&caller, &busy, &seen).await?;
    // The streams are idle once they have caught up.
    sleep(Duration::from_secs(1)).await;
    let per_stream = (cpu::memory(service.pid)? - before) / count as f64 / 1_000.0;
    let span = bench.plan.span();
    let metrics = vec![
        Metric::new(Goal::P8, "p50", "ms", Target::AtMost(5.0)),
        Metric::new(Goal::P8, "p99", "ms", Target::AtMost(25.0)),
        Metric::new(Goal::P8, "memory of an idle stream", "kB", Target::AtMost(30.0)),
    ];
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let mut figures = p50_p99(seen.times(&busy, span).await?);
                figures.push(per_stream);
                Ok(figures)
            },
        )
        .await?;
    readers.shutdown().await;
    rig.close().await?;
    service.stop().await?;
    anchor.close().await;
    Ok(measured)
}

/// Commit time of each event, and the time when its reader received it.
#[derive(Default)]
struct Seen {
    committed: Mutex<HashMap<(usize, i64), Instant>>,
    arrived: Mutex<HashMap<(usize, i64), Instant>>,
}

impl Seen {
    /// Writes at a steady rate and joins both sides.
    async fn times(&self, busy: &[Busy], span: Duration) -> anyhow::Result<Vec<Duration>> {
        self.committed.lock().expect("no writer panics").clear();
        self.arrived.lock().expect("no reader panics").clear();
        let mut ticks = interval(Duration::from_micros(1_000_000 / EVENTS_PER_SECOND));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let events = (span.as_secs_f64() * EVENTS_PER_SECOND as f64) as usize;
        for number in 0..events {
            ticks.tick().await;
            // Spread over the sessions, each in its turn.
            let at = number * 7_919 % busy.len();
            let seq = busy[at].append(1).await?;
            self.committed.lock().expect("no writer panics").insert((at, seq), Instant::now());
        }
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let arrived = self.arrived.lock().expect("no reader panics").clone();
            let committed = self.committed.lock().expect("no writer panics").clone();
            let late = |(key, at): (&(usize, i64), &Instant)| {
                arrived.get(key).map(|arrived| arrived.saturating_duration_since(*at))
            };
            let times: Vec<_> = committed.iter().filter_map(late).collect();
            if times.len() == committed.len() {
                return Ok(times);
            }
            anyhow::ensure!(Instant::now() < until, "{} events never arrived", committed.len() - times.len());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn read(caller: &Caller, busy: &[Busy], seen: &Arc<Seen>) -> anyhow::Result<JoinSet<()>> {
    let mut readers = JoinSet::new();
    for (at, busy) in busy.iter().enumerate() {
        let mut reader = caller.follow(&busy.session.to_string(), 0).await?;
        let seen = seen.clone();
        readers.spawn(async move {
            while let Ok((seq, _)) = reader.next().await {
                seen.arrived.lock().expect("no reader panics").insert((at, seq), Instant::now());
            }
        });
    }
    Ok(readers)
}
