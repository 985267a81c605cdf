//! P4: sessions created by 16 callers, with all guarantees of a creation.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    Bench,
    anchor::Anchor,
    bare::Bare,
    http::Caller,
    measure::{Measured, Metric, Target},
    peer,
    plan::Goal,
};

const CALLERS: usize = 16;

/// Sessions per second, and the figure of bare axum with the same rows.
pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let span = bench.plan.span();
    let anchor = Anchor::open(bench).await?;
    let bare = Bare::start(&bench.ground.superuser()).await?;
    let service = bench.ground.serve(&["--role=api"]).await?;
    let agent = Caller::of(service.address)?.agent().await?;
    let metrics = vec![Metric::new(Goal::P4, "sessions created", "sessions/s", Target::RatioAtLeast(0.60))];
    let mut measured = bench
        .measure(
            metrics,
            async || Ok(vec![create(bare.address, &agent, span).await?]),
            async || Ok(vec![create(service.address, &agent, span).await?]),
        )
        .await?;
    service.stop().await?;
    bare.stop().await?;
    // The turns of these sessions must not run while other goals are measured.
    remove_jobs(bench).await?;
    measured.extend(peer::created(bench, &anchor).await?);
    anchor.close().await;
    Ok(measured)
}

async fn create(address: SocketAddr, agent: &str, span: Duration) -> anyhow::Result<f64> {
    let (done, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let (caller, done) = (Caller::of(address)?, done.clone());
        let body = json!({ "agent": agent, "input": "Hello.", "metadata": { "team": "blue" } });
        callers.spawn(async move {
            for round in 0.. {
                if began.elapsed() >= span {
                    break;
                }
                let key = format!("{number}-{round}-{:?}", began);
                caller.post_once("/sessions", &key, &body).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

/// Removes the queued jobs; the rows stay, as those of canceled sessions would.
async fn remove_jobs(bench: &Bench) -> anyhow::Result<()> {
    let mut connection = bench.ground.connection().await?;
    sqlx::raw_sql(
        "delete from job where kind = 'turn' and worker_id is null;
         update session set status = 'archived', queued_turn_id = null, input_cursor = input_head
         where status = 'queued'",
    )
    .execute(&mut connection)
    .await?;
    Ok(())
}
