//! Chaos test: a whole deployment of real processes under load, killed, frozen and cut off at random and at
//! chosen points; then every guarantee is checked on its database.
//!
//! `make chaos` runs it; `cargo test --test chaos -- --help` lists the parameters. The exit code is 1 when
//! anything was lost, duplicated, stuck or not done.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that fails may panic, and its tasks end with its process"
)]
#![allow(unreachable_pub, reason = "nothing imports from a test")]

mod check;
mod client;
mod cluster;
mod faults;
mod ground;
mod load;
mod plan;
mod processes;
mod proxy;
mod readers;
mod report;
#[path = "../bench/run.rs"]
mod run;
mod verbs;
mod witness;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::Parser;
use reqwest::Method;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Client, Violations},
    faults::{Counts, Faults},
    ground::Ground,
    load::Load,
    plan::{Plan, SeededRng},
    processes::Fleet,
    readers::Readers,
    report::Outcome,
    run::Run,
};

/// Streams that are read concurrently.
const READERS: usize = 8;
/// Everything must be idle within this time after the last fault: the guarantee `Alive`, and one turn of the
/// load.
const REST: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    let plan = Plan::parse();
    sojourn::net::install_tls();
    let seed = plan.seed.unwrap_or_else(|| u64::from_le_bytes(sojourn::base::Origin::system().bytes()) >> 16);
    println!("chaos with seed {seed}");
    let ground = match Ground::new() {
        Ok(ground) => ground,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let violations = Arc::new(Violations::default());
    // When interrupted, it still stops the processes that it started.
    let ran = tokio::select! {
        ran = run(plan.clone(), seed, &ground, violations.clone()) => ran,
        () = asked_to_stop() => Err(anyhow::anyhow!("asked to stop")),
    };
    if let Err(error) = &ran {
        eprintln!("error: {error:#}");
    }
    let failed = ran.is_err() || !violations.all().is_empty();
    if let Err(error) = ground.clear(failed || plan.keep).await {
        eprintln!("error: the directories could not be removed: {error:#}");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn asked_to_stop() {
    let stop = CancellationToken::new();
    tokio::select! {
        () = sojourn::shutdown::on_signals(stop.clone()) => {}
        () = stop.cancelled() => {}
    }
}

async fn run(plan: Plan, seed: u64, ground: &Ground, violations: Arc<Violations>) -> anyhow::Result<()> {
    let began = Instant::now();
    let dice = SeededRng::new(seed);
    let cluster = ground.cluster().await?;
    let described = Run::new("chaos", &cluster.version().await?)?;
    let fleet = Arc::new(Fleet::new(&plan, &ground.data_dir, &ground.logs)?);
    let faults = Arc::new(Faults {
        plan: plan.clone(),
        cluster: cluster.clone(),
        fleet: fleet.clone(),
        violations: violations.clone(),
        late: AtomicBool::new(false),
        counts: Counts::default(),
    });
    for slot in &fleet.slots {
        // One after the other: the first one migrates and creates the organization.
        slot.lock().await.start(|process| cluster.urls(process)).await?;
    }
    cluster.watch().await?;

    let client = Arc::new(Client::new(fleet.addresses.clone(), dice.fork())?);
    let agent = json!({ "name": "chaos", "prompt": "Play the script.", "model": "scripted/inline" });
    let agent = client.send(&violations, Method::POST, "/agents", Some(&agent)).await?;
    let (fresh, sessions) = mpsc::channel(4);
    let agent = agent["id"].as_str().unwrap_or_default().to_owned();
    let load = Arc::new(Load::new(client.clone(), violations.clone(), ground.data_dir.clone(), agent, fresh));
    let readers = Arc::new(Readers::new(client, violations.clone(), sessions, plan.stream_cuts));
    let settled = act(&faults, &load, &readers, &dice).await?;

    let made = load.made.lock().expect("no driver panics").clone();
    let org = check::org(&cluster).await?;
    let found = check::Checker::new(&cluster, &ground.data_dir, &violations)?.check(org, &made).await?;
    witness::check_epochs(&cluster, &violations).await?;
    let hit = fleet.faults.lock().expect("no fault panics").clone();
    witness::check_takeovers(&cluster, plan.lease(), &violations).await?;
    let recoveries = witness::recoveries(&cluster, &hit, &violations).await?;
    let cancels = load.cancels.lock().expect("no driver panics").clone();
    let undisturbed = witness::undisturbed(&cluster, &cancels, &hit).await?;
    for complaint in fleet.stop().await {
        violations.note(complaint);
    }
    for panic in ground.panics()? {
        violations.note(panic);
    }
    let mut outcome = Outcome {
        run: described,
        seed,
        took: began.elapsed(),
        settled,
        faults: &faults,
        load: &load,
        readers: &readers,
        found,
        recoveries,
        undisturbed,
        violations: violations.all(),
    };
    println!("\n{}", outcome.table());
    for violation in &outcome.violations {
        println!("VIOLATION {violation}");
    }
    if plan.write && outcome.violations.is_empty() {
        outcome.write()?;
    }
    Ok(())
}

/// Load, readers and faults concurrently, until all are done and no work is pending. Returns how long that
/// took after the last fault.
async fn act(
    faults: &Arc<Faults>,
    load: &Arc<Load>,
    readers: &Arc<Readers>,
    dice: &SeededRng,
) -> anyhow::Result<Duration> {
    let plan = &faults.plan;
    let mut drivers = JoinSet::new();
    for driver in 0..plan.sessions {
        drivers.spawn(load.clone().drive(driver, dice.fork()));
    }
    let mut following = JoinSet::new();
    for _ in 0..READERS {
        following.spawn(readers.clone().read(dice.fork()));
    }
    let mut helpers = JoinSet::new();
    let (guard, clock) = (faults.clone(), faults.clone());
    helpers.spawn(async move { guard.supervise().await });
    helpers.spawn(async move {
        sleep(Duration::from_secs(clock.plan.minutes * 60)).await;
        clock.violations.note(format!("the faults were not done within {} minutes", clock.plan.minutes));
        clock.late.store(true, Ordering::Relaxed);
    });
    let watched = load.clone();
    helpers.spawn(async move { watched.watch_overdue().await });
    let told = faults.clone();
    helpers.spawn(async move { told.tell().await });
    faults.run(&dice.fork()).await;
    while readers.left.load(Ordering::Relaxed) > 0 && !faults.late.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(100)).await;
    }
    // Readers end when no cut is left; drivers end with the current turn.
    readers.left.store(0, Ordering::Relaxed);
    load.stop.store(true, Ordering::Relaxed);
    let last = Instant::now();
    let rested = tokio::time::timeout(REST, async {
        while drivers.join_next().await.is_some() {}
        last.elapsed()
    });
    let settled = rested.await.unwrap_or_else(|_| {
        faults.violations.note(format!("sessions are not idle {REST:?} after the last fault"));
        REST
    });
    while let Some(ended) = following.join_next().await {
        ended??;
    }
    helpers.shutdown().await;
    compare(load, readers, faults).await?;
    Ok(settled)
}

/// Asserts that readers received exactly the log.
async fn compare(load: &Load, readers: &Readers, faults: &Faults) -> anyhow::Result<()> {
    let seen = readers.seen.lock().expect("no reader panics").clone();
    for (session, ids) in seen {
        let mut log = Vec::new();
        while log.len() < ids.len() {
            let path = format!("/sessions/{session}/events?limit=500&after={}", log.len());
            let page = load.client.send(&faults.violations, Method::GET, &path, None).await?;
            let data = page["data"].as_array().cloned().unwrap_or_default();
            if data.is_empty() {
                break;
            }
            log.extend(data.iter().map(|event| event["id"].as_str().unwrap_or_default().to_owned()));
        }
        if !log.starts_with(&ids) {
            faults.violations.note(format!("{session}: its readers received a different log"));
        }
    }
    Ok(())
}
