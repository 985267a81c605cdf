//! P11: the same work with 10,000 and with 10,000,000 sessions in the database.

use rustix::fs::statvfs;
use serde_json::json;
use sojourn::{
    base::{Id, Origin},
    domain::{
        Actor,
        decide::{Change, Command, Stamp},
    },
};
use sqlx::Connection;
use tokio::{
    task::JoinSet,
    time::{Duration, Instant},
};

use super::idle::{copies, copy_id, remove_copies};
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
/// Sessions that append without a pause.
const HOT: usize = 8;
/// Concurrent appends to sessions chosen at random among all.
const RANDOM: usize = 64;

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
    let mut rig = Rig::beside(bench).await?;
    bench.ground.unbind().await?;
    let busy = rig.busy(HOT).await?;
    copies(&mut connection, template.uuid(), 0, few).await?;
    let base = bench
        .measure(
            base_metrics(few),
            async || anchor.throughput(Way::One, span / 4).await,
            async || figures(&rig, &busy, few, span).await,
        )
        .await?;
    let base_of: Vec<f64> = base.iter().map(|measured| measured.value().median).collect();
    let began = Instant::now();
    println!("  making {many} sessions");
    copies(&mut connection, template.uuid(), few, many).await?;
    let made = (many - few) as f64 / began.elapsed().as_secs_f64();
    let grown = bench
        .measure(
            metrics(few, many),
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let large = figures(&rig, &busy, many, span).await?;
                Ok(large.iter().zip(&base_of).map(|(large, small)| large / small).chain([made]).collect())
            },
        )
        .await?;
    remove_copies(&mut connection).await?;
    connection.close().await?;
    rig.close().await?;
    anchor.close().await;
    Ok(base.into_iter().chain(grown).collect())
}

/// Figures of the small case, which are repeated like those of the large one.
fn base_metrics(few: usize) -> Vec<Metric> {
    let metric =
        |what: &str, unit| Metric::new(Goal::P11, format!("{what}, {few} sessions"), unit, Target::Told);
    vec![
        metric("poll of an empty queue, p99", "ms"),
        metric("appends to 8 sessions", "/s"),
        metric("appends to sessions chosen at random among all", "/s"),
    ]
}

fn metrics(few: usize, many: usize) -> Vec<Metric> {
    let metric = |what: &str, unit, target| Metric::new(Goal::P11, what, unit, target);
    let relative = |what: &str, target| metric(&format!("{what}, relative to {few} sessions"), "x", target);
    vec![
        relative("poll of an empty queue, p99", Target::AtMost(1.3)),
        relative("appends to 8 sessions", Target::AtLeast(0.75)),
        relative("appends to sessions chosen at random among all", Target::AtLeast(0.45)),
        metric(&format!("sessions copied by SQL, {few} to {many}, a second"), "/s", Target::Told),
    ]
}

/// Poll of an empty queue in milliseconds, appends to a few sessions and to all `count` per second.
async fn figures(rig: &Rig, busy: &[Busy], count: usize, span: Duration) -> anyhow::Result<Vec<f64>> {
    let mut polls = Vec::new();
    for _ in 0..500 {
        let began = Instant::now();
        rig.poll().await?;
        polls.push(began.elapsed());
    }
    let hot = rig::drive(busy, 1, span).await?;
    let random = random(rig, count, span).await?;
    Ok(vec![percentile_ms(&mut polls, 99), hot, random])
}

/// Changes sessions chosen at random among `count`, each by a command of a caller; returns events per second.
async fn random(rig: &Rig, count: usize, span: Duration) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..RANDOM {
        let (journal, org, origin) = (rig.journal.clone(), rig.org, Origin::system());
        callers.spawn(async move {
            let stamp = Stamp { actor: Actor::system(), origin: origin.clone() };
            let mut done = 0u64;
            while began.elapsed() < span {
                let chosen = u64::from_le_bytes(origin.bytes());
                let session = Id::from_uuid(copy_id(chosen % count as u64));
                let change = Change { title: Some(Some(format!("title {chosen}"))), ..Change::default() };
                let mut unit = journal.begin(org).await?;
                unit.execute(session, Command::Patch(change), &stamp).await?;
                unit.commit().await?;
                done += 1;
            }
            anyhow::Ok(done)
        });
    }
    let mut done = 0;
    while let Some(ended) = callers.join_next().await {
        done += ended??;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}
