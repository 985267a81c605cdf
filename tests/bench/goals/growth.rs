//! P11: the same work with 10,000 and with 10,000,000 sessions in the database.

use rustix::fs::statvfs;
use serde_json::json;
use sqlx::Connection;
use tokio::time::{Duration, Instant};

use super::idle::{copies, remove_copies};
use crate::{
    Bench, NotHere,
    anchor::{Anchor, Way},
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
    rig::{self, Busy, Rig},
    stats::percentile_ms,
};

/// Sessions of the small case.
const FEW: u64 = 10_000;
/// Disk bytes for each session with its events, their indexes and the server's write-ahead log; measured.
const BYTES_PER_SESSION: u64 = 4_000;
const BUSY: usize = 64;

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let (few, many) =
        if bench.plan.quick { (200, 2_000) } else { (FEW as usize, bench.plan.growth_sessions as usize) };
    let free = statvfs(&bench.ground.data_dir)?;
    let (free, needed) = (free.f_bavail * free.f_frsize, many as u64 * BYTES_PER_SESSION);
    if free < needed {
        let gb = |bytes: u64| bytes / 1_000_000_000;
        let words = format!("{many} sessions need {} GB of disk, {} GB are free", gb(needed), gb(free));
        return Err(NotHere(format!("{words}; --growth-sessions makes it smaller")).into());
    }
    let span = bench.plan.span();
    let anchor = Anchor::open(bench).await?;
    let service = bench.ground.serve(&["--role=all"]).await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    let template = caller.session(&agent, Some(&json!("Hello."))).await?;
    caller.settled(&template).await?;
    let template: sojourn::domain::SessionId = template.parse()?;
    service.stop().await?;
    let mut connection = bench.ground.connection().await?;
    let mut rig = Rig::open(bench).await?;
    let busy = rig.busy(BUSY).await?;
    copies(&mut connection, template.uuid(), 0, few).await?;
    let small = figures(&rig, &busy, span).await?;
    let metrics = vec![
        Metric::new(
            Goal::P11,
            format!("poll of an empty queue, p99, relative to {few} sessions"),
            "x",
            Target::AtMost(1.3),
        ),
        Metric::new(
            Goal::P11,
            format!("appends to 8 sessions, relative to {few} sessions"),
            "x",
            Target::AtLeast(0.75),
        ),
        Metric::new(
            Goal::P11,
            format!("appends to 64 sessions, relative to {few} sessions"),
            "x",
            Target::AtLeast(0.45),
        ),
        Metric::new(
            Goal::P11,
            format!("sessions copied by SQL, {few} to {many}, a second"),
            "/s",
            Target::Told,
        ),
    ];
    let began = Instant::now();
    println!("  making {many} sessions");
    copies(&mut connection, template.uuid(), few, many).await?;
    let made = (many - few) as f64 / began.elapsed().as_secs_f64();
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let large = figures(&rig, &busy, span).await?;
                Ok(vec![large[0] / small[0], large[1] / small[1], large[2] / small[2], made])
            },
        )
        .await?;
    remove_copies(&mut connection).await?;
    connection.close().await?;
    rig.close().await?;
    anchor.close().await;
    Ok(measured)
}

/// Poll of an empty queue in milliseconds, hot and random appends per second.
async fn figures(rig: &Rig, busy: &[Busy], span: Duration) -> anyhow::Result<Vec<f64>> {
    let mut polls = Vec::new();
    for _ in 0..500 {
        let began = Instant::now();
        rig.poll().await?;
        polls.push(began.elapsed());
    }
    let hot = rig::drive(&busy[..8], 1, span).await?;
    let random = rig::drive(busy, 1, span).await?;
    Ok(vec![percentile_ms(&mut polls, 99), hot, random])
}
