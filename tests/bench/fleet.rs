//! `bench fleet`: many API and worker processes against one Postgres: messages per second, and the work that
//! one message causes in all of them.
//!
//! Sessions send messages to one API process and follow their stream at another. Counters are read before and
//! after the load: of the processes from their metrics, of the server from its statistics and from `/proc`.

use std::{
    collections::HashMap,
    fmt::Write,
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    cpu,
    ground::{Ground, Process, free_address},
    http::{Caller, id},
    report,
    stats::p50_p99,
};

/// Sizes of the fleet and of its load.
#[derive(Clone, Debug, Args)]
pub struct Fleet {
    /// Processes with the role `api`
    #[arg(long, default_value_t = 20)]
    pub apis: usize,
    /// Processes with the role `worker`
    #[arg(long, default_value_t = 50)]
    pub workers: usize,
    /// Sessions that send messages concurrently, each as soon as the last one's turn has ended
    #[arg(long, default_value_t = 32)]
    pub sessions: usize,
    /// Length of the load, in seconds
    #[arg(long, default_value_t = 30)]
    pub load_seconds: u64,
    /// Length of the measurement without load, in seconds
    #[arg(long, default_value_t = 10)]
    pub idle_seconds: u64,
    /// Further settings of every process, such as `--database-connections=5`
    #[arg(long, value_name = "SETTING", allow_hyphen_values = true)]
    pub with: Vec<String>,
}

/// Connections that the server allows: more than any fleet opens, so that all of them are counted.
const CONNECTIONS_MAX: u32 = 3_000;
/// Processes that start concurrently.
const TOGETHER: usize = 4;
/// Counters of the processes' metrics.
const COUNTERS: [&str; 4] = [
    "sojourn_claims_total",
    "sojourn_notifications_received_total",
    "sojourn_notifications_sent_total",
    "sojourn_turns_ended_total",
];
/// Time in which one turn must end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A started process and the address of its metrics.
struct Member {
    process: Process,
    metrics: SocketAddr,
}

/// All counters at one time.
#[derive(Default)]
struct Reading {
    counters: HashMap<&'static str, f64>,
    /// Transactions of the database, and context switches of the backends that listen.
    commits: f64,
    wake_ups: f64,
    api: Duration,
    worker: Duration,
    postgres: Duration,
}

/// Starts the fleet, loads it and prints the figures.
pub async fn run(plan: &Fleet) -> anyhow::Result<()> {
    let ground = Ground::start().await?;
    let mut admin = ground.connection().await?;
    let setting = format!("alter system set max_connections = {CONNECTIONS_MAX}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(setting)).execute(&mut admin).await?;
    admin.close().await?;
    let ground = ground.restarted().await?;
    println!("{}\n", report::run(&ground).await?.cells());
    let apis = members(&ground, plan, "api", plan.apis).await?;
    let workers = members(&ground, plan, "worker", plan.workers).await?;
    let measured = measure(plan, &ground, &apis, &workers).await;
    for member in apis.into_iter().chain(workers) {
        member.process.kill().await?;
    }
    ground.clear().await?;
    println!("{}", measured?);
    Ok(())
}

async fn members(ground: &Ground, plan: &Fleet, role: &str, count: usize) -> anyhow::Result<Vec<Member>> {
    let start = async |_| {
        let metrics = free_address()?;
        let mut settings = vec![format!("--role={role}"), format!("--metrics-listen={metrics}")];
        settings.extend(plan.with.iter().cloned());
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        anyhow::Ok(Member { process: ground.serve(&settings).await?, metrics })
    };
    stream::iter(0..count).map(start).buffer_unordered(TOGETHER).try_collect().await
}

async fn measure(
    plan: &Fleet,
    ground: &Ground,
    apis: &[Member],
    workers: &[Member],
) -> anyhow::Result<String> {
    let callers: Vec<_> =
        apis.iter().map(|api| Caller::of(api.process.address)).collect::<anyhow::Result<_>>()?;
    let agent = json!({ "name": "bench", "prompt": "Play the script.", "model": "scripted/inline" });
    let agent = id(&answered(&callers[0], "/agents", "agent", &agent).await?)?;
    let mut admin = ground.connection().await?;

    sleep(Duration::from_secs(5)).await;
    let before = Reading::of(ground, &mut admin, apis, workers).await?;
    sleep(Duration::from_secs(plan.idle_seconds)).await;
    let idle = Reading::of(ground, &mut admin, apis, workers).await?.since(&before);

    let stop = Arc::new(AtomicBool::new(false));
    let (mut senders, mut opened) = (JoinSet::new(), Vec::new());
    for number in 0..plan.sessions {
        let caller = callers[number % callers.len()].clone();
        let body = json!({ "agent": agent });
        let session =
            id(&answered(&caller, "/sessions", &format!("session-{number}"), &body).await?["session"])?;
        // Another process than the one that takes the messages.
        let reader = callers[(number + callers.len() / 2) % callers.len()].follow(&session, 0).await?;
        opened.push((caller, session, reader));
    }
    let before = Reading::of(ground, &mut admin, apis, workers).await?;
    for (caller, session, mut reader) in opened {
        let stop = stop.clone();
        senders.spawn(async move {
            let (mut times, path) = (Vec::new(), format!("/sessions/{session}/messages"));
            while !stop.load(Ordering::Relaxed) {
                let (began, key) = (Instant::now(), format!("{session}-{}", times.len()));
                answered(&caller, &path, &key, &json!({ "text": "Nothing to do." })).await?;
                timeout(PATIENCE, reader.until("turn.completed"))
                    .await
                    .context("the turn does not end")??;
                times.push(began.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut connections = 0;
    for _ in 0..plan.load_seconds {
        sleep(Duration::from_secs(1)).await;
        connections = connections.max(count(&mut admin).await?);
    }
    let load = Reading::of(ground, &mut admin, apis, workers).await?.since(&before);
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    while let Some(ended) = senders.join_next().await {
        times.extend(ended??);
    }
    admin.close().await?;
    Ok(table(plan, &idle, &load, connections, times))
}

/// Sends a request until it is answered: an overloaded machine answers 503.
async fn answered(caller: &Caller, path: &str, key: &str, body: &Value) -> anyhow::Result<Value> {
    let began = Instant::now();
    loop {
        match caller.post_once(path, key, body).await {
            Err(error) if began.elapsed() < PATIENCE && error.to_string().contains("503") => {
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

fn table(plan: &Fleet, idle: &Reading, load: &Reading, connections: i64, times: Vec<Duration>) -> String {
    let messages = load.counter("sojourn_turns_ended_total").max(1.0);
    let (seconds, idle_seconds) = (plan.load_seconds as f64, plan.idle_seconds as f64);
    let mut table = format!(
        "{} api, {} worker processes, {} sessions, {messages} messages in {seconds} s\n\n\
         | figure | with load | without load |\n|---|---|---|\n",
        plan.apis, plan.workers, plan.sessions
    );
    let mut row = |what: &str, loaded: f64, idle: Option<f64>| {
        let idle = idle.map(|figure| format!("{figure:.2}")).unwrap_or_default();
        writeln!(table, "| {what} | {loaded:.2} | {idle} |").expect("writing to a string cannot fail");
    };
    row("messages per second", messages / seconds, None);
    let latency = p50_p99(times);
    row("milliseconds from the message to the end of its turn, p50", latency[0], None);
    row("the same, p99", latency[1], None);
    row("open connections, largest number", connections as f64, None);
    let counted = [
        ("claims", "sojourn_claims_total"),
        ("notifications sent", "sojourn_notifications_sent_total"),
        ("notifications received", "sojourn_notifications_received_total"),
    ];
    for (what, name) in counted {
        let idle = idle.counter(name) / idle_seconds;
        row(
            &format!("{what} per message; per second without load"),
            load.counter(name) / messages,
            Some(idle),
        );
    }
    for (what, of) in [
        ("transactions of the database", (|reading| reading.commits) as fn(&Reading) -> f64),
        ("wake-ups of backends that listen", |reading| reading.wake_ups),
        ("milliseconds of processor time of api processes", |reading| reading.api.as_secs_f64() * 1_000.0),
        ("milliseconds of processor time of workers", |reading| reading.worker.as_secs_f64() * 1_000.0),
        ("milliseconds of processor time of Postgres", |reading| reading.postgres.as_secs_f64() * 1_000.0),
    ] {
        let idle = of(idle) / idle_seconds;
        row(&format!("{what} per message; per second without load"), of(load) / messages, Some(idle));
    }
    table
}

impl Reading {
    async fn of(
        ground: &Ground,
        admin: &mut PgConnection,
        apis: &[Member],
        workers: &[Member],
    ) -> anyhow::Result<Self> {
        let mut reading = Self::default();
        for member in apis.iter().chain(workers) {
            let text = reqwest::get(format!("http://{}/metrics", member.metrics)).await?.text().await?;
            for name in COUNTERS {
                let of_name = |line: &&str| line.starts_with(name);
                let values = text.lines().filter(of_name).filter_map(|line| line.split_whitespace().last());
                let sum: f64 = values.filter_map(|value| value.parse::<f64>().ok()).sum();
                *reading.counters.entry(name).or_default() += sum;
            }
        }
        let statistics =
            "select xact_commit::float8 from pg_stat_database where datname = current_database()";
        reading.commits = sqlx::query_scalar(statistics).fetch_one(&mut *admin).await?;
        let listening = "select pid from pg_stat_activity where application_name = 'sojourn-listen'";
        let pids: Vec<i32> = sqlx::query_scalar(listening).fetch_all(&mut *admin).await?;
        // One that ended meanwhile is not counted.
        reading.wake_ups = pids.into_iter().filter_map(switches).sum();
        for (members, used) in [(apis, &mut reading.api), (workers, &mut reading.worker)] {
            for member in members {
                *used += cpu::process(member.process.pid)?;
            }
        }
        reading.postgres = cpu::server(ground.postmaster)?;
        Ok(reading)
    }

    fn since(mut self, before: &Self) -> Self {
        self.counters.iter_mut().for_each(|(name, value)| *value -= before.counter(name));
        self.commits -= before.commits;
        self.wake_ups -= before.wake_ups;
        self.api = self.api.saturating_sub(before.api);
        self.worker = self.worker.saturating_sub(before.worker);
        self.postgres = self.postgres.saturating_sub(before.postgres);
        self
    }

    fn counter(&self, name: &str) -> f64 {
        self.counters.get(name).copied().unwrap_or_default()
    }
}

/// Number of the service's connections.
async fn count(admin: &mut PgConnection) -> anyhow::Result<i64> {
    let count = "select count(*) from pg_stat_activity where application_name like 'sojourn-%'";
    Ok(sqlx::query_scalar(count).fetch_one(admin).await?)
}

/// How often a process has waited and was woken.
fn switches(pid: i32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}
