//! Switchovers and failovers of the database under load.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use tokio::time::{Instant, timeout};

use crate::{
    cluster::Cluster,
    deployment::{Deployment, Ground},
    load::Shape,
    process::{Urls, free_address},
    report::Row,
};

/// A write is accepted within this time after a fault: 20 s until the leader's key expires, the promotion, and the
/// waits of the service.
const ACCEPTED_MAX: Duration = Duration::from_secs(90);
/// With asynchronous replication, the replicas receive nothing for this long before the leader is killed.
const LOSS: Duration = Duration::from_millis(1_500);

/// Alternates `faults` switchovers and kills of the leader.
pub async fn failover(faults: u32, synchronous: bool, ground: &Ground, shape: Shape) -> anyhow::Result<Row> {
    let mut cluster = Cluster::start(&ground.root, synchronous).await?;
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_sojourn"));
    let place = format!("127.0.0.1:{}/sojourn?sslmode=disable", cluster.port);
    let launches = Deployment::launches(ground, &binary, &Urls::at(&place))?;
    let deployment = Deployment::start(launches, free_address()?, shape).await?;
    let ledger = deployment.load.ledger.clone();
    let (mut switchovers, mut kills) = (Vec::new(), Vec::new());
    for fault in 0..faults {
        deployment.progress(8).await?;
        cluster.whole().await?;
        let began = Instant::now();
        let times = if fault.is_multiple_of(2) {
            cluster.switchover().await?;
            &mut switchovers
        } else {
            let killed = cluster.kill_leader((!synchronous).then_some(LOSS)).await?;
            cluster.promoted(killed).await?;
            cluster.restart(killed)?;
            &mut kills
        };
        timeout(ACCEPTED_MAX, deployment.progress(4)).await.context("no write was accepted")??;
        let gap = ledger.longest_gap_after(began).context("a write")?;
        println!("fault {}: no write was accepted for {:.1} s", fault + 1, gap.as_secs_f64());
        times.push(gap);
    }
    cluster.whole().await?;
    let superuser = cluster.url("postgres", "sojourn");
    let (load, counts) = deployment.end(ground, &superuser).await?;
    cluster.stop().await?;
    let mut more = Vec::new();
    for (what, times) in [("switchovers", &mut switchovers), ("kills of the leader", &mut kills)] {
        times.sort();
        let at = |place: usize| {
            times.get(place).map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
        };
        more.push((what.to_owned(), times.len().to_string()));
        let (median, longest) = (at(times.len() / 2), at(times.len().saturating_sub(1)));
        more.push((
            format!("time without an accepted write, {what}: median, longest"),
            format!("{median}, {longest}"),
        ));
    }
    let title = if synchronous { "synchronous replication" } else { "asynchronous replication" };
    Ok(Row { title: title.to_owned(), load, counts, more })
}
