//! P11: a session with a very long log: opened, streamed and exported as a whole.

use tokio::time::Instant;

use crate::{
    Bench,
    anchor::{Anchor, Way},
    cpu,
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
    rig::Rig,
};

/// Events of one append while the log is created.
const TOGETHER: usize = 500;

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let events = bench.plan.size(100_000, 2_000);
    let anchor = Anchor::open(bench).await?;
    let service = bench.ground.serve(&["--role=api"]).await?;
    let caller = Caller::of(service.address)?;
    let mut rig = Rig::beside(bench).await?;
    let busy = rig.busy(1).await?;
    let mut head = 0;
    while (head as usize) < events {
        head = busy[0].append(TOGETHER).await?;
    }
    let session = busy[0].session.to_string();
    let of = |what: &str| format!("{what} of a log of {events} events");
    let metrics = vec![
        Metric::new(Goal::P11, of("first page"), "ms", Target::Told),
        Metric::new(Goal::P11, of("stream"), "events/s", Target::Told),
        Metric::new(Goal::P11, of("export"), "events/s", Target::Told),
        Metric::new(Goal::P11, of("peak memory of stream and export"), "MB", Target::AtMost(32.0)),
    ];
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, bench.plan.span() / 4).await,
            async || {
                let before = cpu::memory(service.pid)?;
                cpu::reset_peak(service.pid)?;
                let began = Instant::now();
                caller.get(&format!("/sessions/{session}/events?level=internal")).await?;
                let page = began.elapsed().as_secs_f64() * 1_000.0;
                let began = Instant::now();
                let mut reader = caller.follow_all(&session).await?;
                while reader.next().await?.0 < head {}
                let streamed = head as f64 / began.elapsed().as_secs_f64();
                let began = Instant::now();
                let lines = caller.lines(&format!("/sessions/{session}/export")).await?;
                anyhow::ensure!(lines as i64 > head, "{lines} lines for {head} events");
                let exported = head as f64 / began.elapsed().as_secs_f64();
                Ok(vec![page, streamed, exported, (cpu::peak_memory(service.pid)? - before).max(0.0) / 1e6])
            },
        )
        .await?;
    rig.close().await?;
    service.stop().await?;
    anchor.close().await;
    Ok(measured)
}
