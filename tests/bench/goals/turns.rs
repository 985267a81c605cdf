//! P6: turns whose model answers immediately, measured from outside: a message is sent over HTTP, the end of
//! its turn arrives on the session's stream.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use crate::{
    Bench,
    anchor::{Anchor, Way},
    http::{Caller, Reader},
    measure::{Measured, Metric, Target},
    peer,
    plan::Goal,
    stats::p50_p99,
};

/// Sessions that run turns concurrently, when turns are counted.
const BUSY: usize = 64;
/// Turns of one session before the next session is used.
const TURNS: usize = 20;

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let (span, count) = (bench.plan.span(), bench.plan.size(400, 20));
    let anchor = Anchor::open(bench).await?;
    let service = bench.ground.serve(&["--role=all", "--max-concurrent-turns=64"]).await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    let metrics = vec![
        Metric::new(Goal::P6, "p50", "ms", Target::AtMost(20.0)),
        Metric::new(Goal::P6, "p99", "ms", Target::AtMost(60.0)),
        Metric::new(Goal::P6, "turns of 64 sessions", "turns/s", Target::AtLeast(1_500.0)),
    ];
    let mut measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let mut figures = p50_p99(latency(&caller, &agent, count).await?);
                figures.push(throughput(&caller, &agent, span).await?);
                Ok(figures)
            },
        )
        .await?;
    service.stop().await?;
    measured.extend(peer::turns(bench, &anchor).await?);
    anchor.close().await;
    Ok(measured)
}

async fn latency(caller: &Caller, agent: &str, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    while times.len() < count {
        let mut followed = Followed::open(caller, agent).await?;
        for _ in 0..TURNS.min(count) {
            times.push(followed.turn().await?);
        }
    }
    Ok(times)
}

async fn throughput(caller: &Caller, agent: &str, span: Duration) -> anyhow::Result<f64> {
    let mut all = Vec::new();
    for _ in 0..BUSY {
        all.push(Followed::open(caller, agent).await?);
    }
    let began = Instant::now();
    let mut busy = JoinSet::new();
    for mut followed in all {
        let (caller, agent) = (caller.clone(), agent.to_owned());
        busy.spawn(async move {
            let mut count = 0;
            while began.elapsed() < span {
                followed.turn().await?;
                count += 1;
                if count % TURNS == 0 {
                    followed = Followed::open(&caller, &agent).await?;
                }
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(ended) = busy.join_next().await {
        count += ended??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// A session with an open stream.
struct Followed {
    caller: Caller,
    session: String,
    reader: Reader,
}

impl Followed {
    async fn open(caller: &Caller, agent: &str) -> anyhow::Result<Self> {
        let session = caller.session(agent, None).await?;
        let reader = caller.follow(&session, 0).await?;
        Ok(Self { caller: caller.clone(), session, reader })
    }

    /// Sends a message and waits for the end of its turn.
    async fn turn(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.caller.steer(&self.session, "Nothing to do.").await?;
        self.reader.until("turn.completed").await?;
        Ok(began.elapsed())
    }
}
