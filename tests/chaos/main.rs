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

mod answers;
mod check;
mod client;
mod cluster;
mod deliveries;
mod faults;
mod fold;
mod ground;
mod load;
mod mcp;
#[path = "../it/fake/mcp.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod mcp_fake;
mod messages;
mod outages;
mod plan;
mod processes;
mod proxy;
mod readers;
#[path = "../it/fake/receiver.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod receiver;
mod record;
#[path = "../it/support/relay.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod relay;
mod report;
#[path = "../bench/run.rs"]
mod run;
mod script;
mod verbs;
mod witness;

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use clap::Parser;
use futures::{StreamExt, future::join_all, stream};
use reqwest::Method;
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Client, Violations},
    cluster::Cluster,
    deliveries::{Deliveries, event_id},
    faults::Faults,
    ground::Ground,
    load::Load,
    mcp::Notes,
    plan::{Plan, SeededRng},
    processes::Fleet,
    readers::Readers,
    record::Record,
    report::Outcome,
    run::Run,
};

/// Readers of whole logs again, besides those that follow each session.
const REPEATERS: usize = 3;
/// Logs that are read to their end concurrently.
const COMPLETED: usize = 16;
/// Sessions and the ends of their drivers, for the readers.
type Fresh = mpsc::UnboundedReceiver<(String, watch::Receiver<bool>)>;
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
    let fleet = Arc::new(Fleet::new(&plan, &cluster, &ground.data_dir, &ground.logs).await?);
    let faults = Arc::new(Faults::new(&plan, &cluster, &fleet, &violations));
    // At one moment, on a database without a schema.
    let started =
        join_all(fleet.slots.iter().map(async |slot| slot.lock().await.start(&cluster).await)).await;
    started.into_iter().collect::<anyhow::Result<()>>()?;
    cluster.watch().await?;

    let client = Arc::new(Client::new(fleet.addresses.clone(), dice.fork())?);
    let notes = Notes::start(dice.fork()).await;
    let agent = scripted_agent(&client, &violations, &notes).await?;
    let deliveries = Deliveries::start(&client, &violations).await?;
    let (fresh, sessions) = mpsc::unbounded_channel();
    let load = Arc::new(Load::new(client.clone(), violations.clone(), agent, fresh));
    let readers = Arc::new(Readers::new(client, violations.clone(), plan.stream_cuts));
    let settled = act(&faults, &load, &readers, sessions, &dice).await?;
    // What was found so far is told, whatever fails from here on.
    violations.noted("the logs were not read whole", complete(&cluster, &readers, &violations, &dice).await);
    let delivered = violations
        .noted("deliveries were not checked", deliveries.check(&cluster, &violations).await)
        .unwrap_or_default();
    for complaint in fleet.stop().await {
        violations.note(complaint);
    }
    for panic in ground.panics()? {
        violations.note(panic);
    }

    // Nothing writes any more.
    let made = load.made.lock().expect("no driver panics").clone();
    let mut record = Record::open(&cluster).await?;
    let found = check::Checker::new(&ground.data_dir, &violations, &load.answers, &notes)
        .check(&mut record, &made)
        .await?;
    notes.check(&violations);
    witness::check_epochs(&cluster, &violations).await?;
    let hit = fleet.faults.lock().expect("no fault panics").clone();
    let recoveries =
        witness::check_takeovers((&cluster, &ground.logs), plan.lease(), &hit, &violations).await?;
    let cancels = load.cancels.lock().expect("no driver panics").clone();
    let undisturbed = witness::undisturbed(&cluster, &cancels, &hit).await?;
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
        delivered,
        violations: violations.all(),
    };
    println!("\n{}", outcome.table());
    for violation in &outcome.violations {
        println!("VIOLATION {violation}");
    }
    if plan.write {
        outcome.write()?;
    }
    Ok(())
}

/// Creates the agent of all sessions. Returns its id.
async fn scripted_agent(client: &Client, violations: &Violations, notes: &Notes) -> anyhow::Result<String> {
    let tools = json!(["bash", "read", "write", "edit", "glob", "grep", "ask", answers::tool()]);
    let agent = json!({
        "name": "chaos",
        "prompt": "Play the script.",
        "model": "scripted/inline",
        "tools": tools,
        "mcp_servers": [notes.server()],
        "permissions": [{ "tool": mcp::NOTE, "policy": "allow" }],
    });
    let agent = client.send(violations, Method::POST, "/agents", Some(&agent)).await?;
    Ok(agent["id"].as_str().unwrap_or_default().to_owned())
}

/// Load, readers and faults concurrently, until all are done and no work is pending. Returns how long that
/// took after the last fault.
async fn act(
    faults: &Arc<Faults>,
    load: &Arc<Load>,
    readers: &Arc<Readers>,
    sessions: Fresh,
    dice: &SeededRng,
) -> anyhow::Result<Duration> {
    let plan = &faults.plan;
    let mut drivers = JoinSet::new();
    for driver in 0..plan.sessions {
        drivers.spawn(load.clone().drive(driver, dice.fork()));
    }
    let mut repeating = JoinSet::new();
    for _ in 0..REPEATERS {
        repeating.spawn(readers.clone().repeat(dice.fork()));
    }
    let following = tokio::spawn(follow(readers.clone(), sessions, dice.fork()));
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
    // Repeated reads end when no cut is left; drivers end with the current turn, and their followers then.
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
    // Drivers that are stuck were recorded; their followers end with them.
    drivers.shutdown().await;
    helpers.shutdown().await;
    // The last holder of the channel's sender: the load of the drivers.
    load.close();
    faults.violations.noted("a session was not followed to its end", following.await?);
    while let Some(ended) = repeating.join_next().await {
        faults.violations.noted("reads were not repeated to their end", ended?);
    }
    Ok(settled)
}

/// Follows every session, one reader each, until no session is made any more.
async fn follow(readers: Arc<Readers>, mut sessions: Fresh, dice: SeededRng) -> anyhow::Result<()> {
    let mut following = JoinSet::new();
    while let Some((session, driven)) = sessions.recv().await {
        following.spawn(readers.clone().follow(session, driven, dice.fork()));
        while let Some(ended) = following.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = following.join_next().await {
        ended??;
    }
    Ok(())
}

/// Reads every log in the database to its end, and asserts that its reader received exactly its events.
async fn complete(
    cluster: &Cluster,
    readers: &Arc<Readers>,
    violations: &Violations,
    dice: &SeededRng,
) -> anyhow::Result<()> {
    let mut record = Record::open(cluster).await?;
    let heads = record.heads().await?;
    let known: HashMap<_, _> =
        heads.iter().map(|(id, count)| (check::public(*id).to_string(), (*id, *count as usize))).collect();
    let mut reads = stream::iter(known.iter().map(|(session, (_, count))| {
        tokio::spawn(readers.clone().complete(session.clone(), *count, dice.fork()))
    }))
    .buffer_unordered(COMPLETED);
    while let Some(read) = reads.next().await {
        read??;
    }
    let seen = readers.seen.lock().expect("no reader panics").clone();
    for (session, (id, count)) in &known {
        let log = record.session(*id).await?.log;
        let log = log.iter().take(*count).map(|event| event_id(event.id));
        let read = seen.get(session).cloned().unwrap_or_default();
        if !log.eq(read.iter().cloned()) {
            violations.note(format!("{session}: its reader received {} of {count} events", read.len()));
        }
    }
    Ok(())
}
