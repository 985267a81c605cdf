//! P4: sessions created by 16 callers, with all guarantees of a creation; and deleted again by retention,
//! which must be at least as fast.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use sqlx::Connection;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

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
    let metrics = vec![
        Metric::new(Goal::P4, "sessions created", "sessions/s", Target::RatioAtLeast(0.60)),
        Metric::new(Goal::P4, "the same sessions deleted by retention", "sessions/s", Target::Told),
        Metric::new(Goal::P4, "deletion by retention, relative to creation", "x", Target::AtLeast(1.0)),
    ];
    let mut measured = bench
        .measure(
            metrics,
            async || Ok(vec![create(bare.address, &agent, span).await?]),
            async || {
                let created = create(service.address, &agent, span).await?;
                let deleted = delete(bench).await?;
                Ok(vec![created, deleted, deleted / created])
            },
        )
        .await?;
    service.stop().await?;
    bare.stop().await?;
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

/// Archives the sessions two days ago and lets a worker delete them; returns sessions per second.
async fn delete(bench: &Bench) -> anyhow::Result<f64> {
    let mut connection = bench.ground.connection().await?;
    sqlx::raw_sql(
        "delete from job where kind = 'turn' and worker_id is null;
         update org set retention_days = 1;
         update session
         set status = 'archived', queued_turn_id = null, input_cursor = input_head,
             stopped_at = now() - interval '2 days', stopped_by = actor
         where status = 'queued'",
    )
    .execute(&mut connection)
    .await?;
    let count = "select count(*) from session where stopped_at < now() - interval '1 day'";
    let sessions: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await?;
    let began = Instant::now();
    let worker = bench.ground.serve(&["--role=worker"]).await?;
    while sqlx::query_scalar::<_, i64>(count).fetch_one(&mut connection).await? > 0 {
        anyhow::ensure!(
            began.elapsed() < Duration::from_secs(300),
            "sessions past their time are not deleted"
        );
        sleep(Duration::from_millis(20)).await;
    }
    let took = began.elapsed().as_secs_f64();
    worker.stop().await?;
    sqlx::raw_sql("update org set retention_days = null").execute(&mut connection).await?;
    connection.close().await?;
    Ok(sessions as f64 / took)
}
