//! A machine whose link to the database is cut without a reset, for a while and for good.
//!
//! Postgres and one machine of the service have a network namespace each. A second machine has a good link: the
//! Unix socket of Postgres. Every caller uses both.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, ensure};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    deployment::{Deployment, Ground},
    load::Shape,
    namespace::{Cut, Link, Namespace},
    postgres::Postgres,
    process::{KEY, Launch, Role, Urls},
    report::Row,
};

/// A cut-off process says so within this time.
const NOT_READY_MAX: Duration = Duration::from_secs(10);
/// Its streams end within this time after that: the limit of a statement, and `STREAM_OUTAGE_MAX`.
const STREAM_END_MAX: Duration = Duration::from_secs(60);
/// A process is ready again within this time after the link works: the limits of its waits, and the retransmission
/// timer of TCP.
const READY_MAX: Duration = Duration::from_secs(60);

/// Cuts `cuts` times for `length`, and then once for good.
pub async fn partition(cuts: u32, length: Duration, ground: &Ground, shape: Shape) -> anyhow::Result<Row> {
    ensure!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let number = std::process::id() % 10_000;
    let far = Namespace::new(&format!("sojourn-db-{number}")).await?;
    let near = Namespace::new(&format!("sojourn-{number}")).await?;
    let subnet = (number % 250) as u8;
    let link = Link::new(&format!("db{number}"), &far, &near, [10, 213, subnet]).await?;
    let (inner, outer) = near.connect_host(&format!("so{number}"), [10, 214, subnet]).await?;
    let server = Postgres::start(&ground.root, 5_432, Some(&far)).await?;
    let superuser = server.url("postgres", "sojourn");
    let place = format!("{}:5432/sojourn?sslmode=disable", link.addresses.0);
    let launches = launches(ground, &Urls::at(&server.socket()), &Urls::at(&place), (&near, inner))?;
    let mut deployment = Deployment::start(launches, SocketAddr::new(outer.into(), 0), shape).await?;
    let ready = format!("http://{inner}:8080/readyz");
    let began = Instant::now();
    let done = |step: &str| println!("{:.0} s: {step}", began.elapsed().as_secs_f64());
    let mut recoveries = Vec::new();
    deployment.progress(8).await?;
    done("the load runs");
    for number in 0..cuts {
        let cut = if number.is_multiple_of(2) { Cut::Astray } else { Cut::Down };
        link.cut(cut).await?;
        sleep(length).await;
        link.repair(cut).await?;
        recoveries.push(becomes(&ready, 200, READY_MAX).await?);
        deployment.progress(4).await?;
        done(&format!("cut {} is repaired", number + 1));
    }

    let stream = open_stream(&format!("http://{inner}:8080/v3/sessions?stream=sse")).await?;
    link.cut(Cut::Astray).await?;
    let stream = tokio::spawn(ends(stream));
    let not_ready = becomes(&ready, 503, NOT_READY_MAX).await?;
    // The others go on without it, also with the turns that it held.
    deployment.progress(16).await?;
    done("the load goes on beside the last cut");
    let stream_end = stream.await??;
    done("the stream of the cut-off process has ended");
    let mut drains = Vec::new();
    for _ in 0..2 {
        let process = deployment.processes.pop().context("a process")?;
        drains.push(process.drain().await?);
    }
    done("the cut-off processes have ended");
    let (load, counts) = deployment.end(ground, &superuser).await?;
    done("all is at rest and judged");
    server.stop().await?;
    let seconds = |times: &[Duration]| {
        let longest = times.iter().max().copied().unwrap_or_default();
        format!("{:.1} s", longest.as_secs_f64())
    };
    let more = vec![
        ("cuts, of which one for good".to_owned(), (cuts + 1).to_string()),
        ("link works to ready, longest".to_owned(), seconds(&recoveries)),
        ("last cut to not ready".to_owned(), seconds(&[not_ready])),
        ("last cut to end of a stream".to_owned(), seconds(&[stream_end])),
        ("SIGTERM to end of a process without its database, longest".to_owned(), seconds(&drains)),
    ];
    Ok(Row { title: format!("link cut for {} s", length.as_secs()), load, counts, more })
}

/// One worker and one API process on each machine. The first one migrates; those that are cut off are the last.
fn launches(
    ground: &Ground,
    good: &Urls,
    cut_off: &Urls,
    (namespace, address): (&Namespace, Ipv4Addr),
) -> anyhow::Result<Vec<Launch>> {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_sojourn"));
    let inside = |name: &str, role: Role, port: u16| {
        let launch = ground.launch(name, role, &binary, cut_off)?;
        let listen = SocketAddr::new(address.into(), port);
        anyhow::Ok(Launch { listen, namespace: Some(namespace.clone()), ..launch })
    };
    Ok(vec![
        ground.launch("worker", Role::Worker, &binary, good)?,
        ground.launch("api", Role::Api, &binary, good)?,
        inside("cut-worker", Role::Worker, 0)?,
        inside("cut-api", Role::Api, 8_080)?,
    ])
}

async fn open_stream(url: &str) -> anyhow::Result<reqwest::Response> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    Ok(http.get(url).bearer_auth(KEY).send().await?.error_for_status()?)
}

/// Reads a stream to its end. Returns how long that took.
async fn ends(mut stream: reqwest::Response) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let read = async { while let Ok(Some(_)) = stream.chunk().await {} };
    timeout(STREAM_END_MAX, read).await.context("a stream of the cut-off process does not end")?;
    Ok(began.elapsed())
}

/// Waits until a URL answers with a status. Returns how long that took.
async fn becomes(url: &str, status: u16, limit: Duration) -> anyhow::Result<Duration> {
    let (began, http) = (Instant::now(), reqwest::Client::builder().no_proxy().build()?);
    let reached = async {
        loop {
            let answer = http.get(url).timeout(Duration::from_secs(40)).send().await;
            if answer.is_ok_and(|answer| answer.status() == status) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(limit, reached)
        .await
        .with_context(|| format!("{url} did not answer {status} within {limit:?}"))?;
    Ok(began.elapsed())
}
