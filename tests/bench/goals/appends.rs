//! P1, P2, P3: appends of a leased turn, compared with the bare statements.

use sqlx::Connection;
use tokio::time::Instant;

use crate::{
    Bench,
    anchor::{Anchor, Way},
    cpu,
    measure::{Measured, Metric, Target},
    plan::Goal,
    rig::{self, Busy, Rig},
    stats::p50_p99,
};

/// Sessions that append concurrently.
const BUSY: usize = 64;

/// P1 and P2 without destinations, and the same with one destination per session.
pub async fn throughput(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let mut measured = Vec::new();
    let one = vec![
        Metric::new(Goal::P1, "one event at a time", "events/s", Target::RatioAtLeast(0.40)),
        Metric::new(Goal::P2, "CPU time per event, one at a time", "us", Target::RatioAtMost(2.5)),
    ];
    measured.extend(drive(bench, one, Way::TenSessions, 1, false).await?);
    let burst = vec![
        Metric::new(Goal::P1, "ten events at a time", "events/s", Target::RatioAtLeast(0.50)),
        Metric::new(Goal::P2, "CPU time per event, ten at a time", "us", Target::Told),
    ];
    measured.extend(drive(bench, burst, Way::Several(10), 10, false).await?);
    let sent = vec![
        Metric::new(Goal::P1, "one event at a time, with a destination", "events/s", Target::Told),
        Metric::new(Goal::P2, "CPU time per event, with a destination", "us", Target::Told),
    ];
    measured.extend(drive(bench, sent, Way::TenSessions, 1, true).await?);
    Ok(measured)
}

/// P3: nothing else runs, so no batch delay is worthwhile.
pub async fn single(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let anchor = Anchor::open(bench).await?;
    let mut rig = Rig::open(bench).await?;
    let busy = rig.busy(1).await?;
    let count = bench.plan.size(2_000, 100);
    let metrics = vec![
        Metric::new(Goal::P3, "p50", "ms", Target::RatioAtMost(2.0)),
        Metric::new(Goal::P3, "p99", "ms", Target::RatioAtMost(3.0)),
    ];
    let measured = bench
        .measure(
            metrics,
            async || Ok(p50_p99(anchor.singles(count).await?)),
            async || {
                let mut times = Vec::with_capacity(count);
                for _ in 0..count {
                    let began = Instant::now();
                    busy[0].append(1).await?;
                    times.push(began.elapsed());
                }
                Ok(p50_p99(times))
            },
        )
        .await?;
    rig.close().await?;
    anchor.close().await;
    Ok(measured)
}

async fn drive(
    bench: &Bench,
    metrics: Vec<Metric>,
    way: Way,
    events: usize,
    has_destination: bool,
) -> anyhow::Result<Vec<Measured>> {
    let span = bench.plan.span();
    let anchor = Anchor::open(bench).await?;
    let mut rig = Rig::open(bench).await?;
    let busy = rig.busy(BUSY).await?;
    if has_destination {
        give_destinations(bench, &rig, &busy).await?;
    }
    let postmaster = bench.ground.postmaster;
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(way, span).await,
            async || {
                let before = cpu::own()? + cpu::server(postmaster)?;
                let began = Instant::now();
                let per_second = rig::drive(&busy, events, span).await?;
                let count = per_second * began.elapsed().as_secs_f64();
                let used = (cpu::own()? + cpu::server(postmaster)?).saturating_sub(before);
                Ok(vec![per_second, used.as_secs_f64() * 1e6 / count])
            },
        )
        .await?;
    rig.close().await?;
    if has_destination {
        delete_deliveries(bench).await?;
    }
    anchor.close().await;
    Ok(measured)
}

/// Creates a destination for each session, to which nothing is sent during the measurement.
async fn give_destinations(bench: &Bench, rig: &Rig, busy: &[Busy]) -> anyhow::Result<()> {
    let sessions: Vec<_> = busy.iter().map(|busy| busy.session.uuid()).collect();
    let mut connection = bench.ground.connection().await?;
    sqlx::query(
        "insert into destination (
            org_id, session_id, destination_id, url, sealed_secret, level, include_raw, enabled, created_after_seq
         )
         select $1, unnest($2::uuid[]), gen_random_uuid(), 'http://127.0.0.1:9/', '', 3, false, true, 0",
    )
    .bind(rig.org.uuid())
    .bind(sessions)
    .execute(&mut connection)
    .await?;
    Ok(connection.close().await?)
}

/// Deletes the deliveries, or their retries would run beside later goals.
async fn delete_deliveries(bench: &Bench) -> anyhow::Result<()> {
    let mut connection = bench.ground.connection().await?;
    sqlx::raw_sql("update destination set enabled = false; delete from delivery")
        .execute(&mut connection)
        .await?;
    Ok(connection.close().await?)
}
