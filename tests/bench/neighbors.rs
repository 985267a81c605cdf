//! `bench neighbors`: turns of an ordinary session alone, then beside a session that takes all that it can get of one
//! resource.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{ground::Ground, http::Caller, report, run::Run, stats::percentile_ms};

/// Sizes of the measurement.
#[derive(Clone, Debug, Args)]
pub struct Neighbors {
    /// Seconds for which each neighbor works
    #[arg(long, default_value_t = 8)]
    pub seconds: u64,
    /// Measure only the neighbors whose name begins so
    #[arg(long, default_value = "", conflicts_with = "write")]
    pub only: String,
    /// Write the chapter of docs/isolation.md
    #[arg(long)]
    pub write: bool,
}

/// The page with the figures, and their chapter.
const PAGE: &str = "docs/isolation.md";
const CHAPTER: &str = "## Beside a greedy neighbor";
/// Goal: the turns take at most this many times as long.
const RATIO_MAX: f64 = 2.0;
/// Time that a neighbor has before the turns are measured.
const HEAD_START: Duration = Duration::from_secs(1);

/// Neighbors: the resource that they take, their number, and their script, which never ends by itself.
const GREEDY: [(&str, usize, &str); 13] = [
    ("CPU", 1, "for at in $(seq 8); do (while :; do :; done) & done; wait"),
    ("memory", 1, "while :; do python3 -c 'held = [bytearray(1 << 20) for at in range(65536)]'; done"),
    ("disk", 1, "while :; do dd if=/dev/zero of=big bs=1M count=256 conv=fsync 2>/dev/null; rm big; done"),
    (
        "small files",
        1,
        "while :; do mkdir many; (cd many; seq 2000 | xargs touch); rm -r many; sync -f .; done",
    ),
    ("processes", 1, "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'"),
    (
        "starts of programs, in four sandboxes",
        4,
        "for at in $(seq 8); do (while :; do /bin/true; done) & done; wait",
    ),
    (
        "inotify instances",
        1,
        "python3 -c 'import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.inotify_init()'",
    ),
    ("pseudo terminals", 1, "python3 -c 'import os\nwhile True:\n try: os.openpty()\n except OSError: pass'"),
    (
        "asynchronous I/O",
        1,
        "python3 -c 'import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.syscall(206, 1 << 20, ctypes.byref(ctypes.c_long()))'",
    ),
    (
        "connections",
        1,
        "python3 -c 'import socket\nheld = []\nwhile True:\n try: held.append(socket.create_connection((\"127.0.0.1\", 3128)))\n except OSError: held.clear()'",
    ),
    ("output", 1, "yes"),
    ("refused requests", 1, "while :; do curl -s http://denied.example/; done > /dev/null"),
    (
        "output and refused requests",
        1,
        "(while :; do curl -s http://denied.example/; done > /dev/null) & yes",
    ),
];

/// Turns alone and beside one neighbor: p50 and p90 in milliseconds.
struct Beside {
    what: &'static str,
    alone: [f64; 2],
    beside: [f64; 2],
    turns: usize,
}

/// Measures, prints, and writes the chapter.
pub async fn run(plan: &Neighbors) -> anyhow::Result<()> {
    let ground = Ground::start().await?;
    let measured = measure(plan, &ground).await;
    let run = report::run(&ground).await?;
    let cleared = ground.clear().await;
    let chapter = chapter(&run, &measured?);
    cleared?;
    println!("\n{chapter}");
    if plan.write {
        report::replace_chapter(PAGE, CHAPTER, &chapter)?;
        println!("written: {PAGE}");
    }
    Ok(())
}

async fn measure(plan: &Neighbors, ground: &Ground) -> anyhow::Result<Vec<Beside>> {
    let service = ground
        .serve(&[
            "--role=all",
            "--max-concurrent-turns=8",
            "--user=sojourn",
            "--sandbox-freeze-after-seconds=600",
        ])
        .await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    let mut all = Vec::new();
    for (what, count, script) in GREEDY.into_iter().filter(|(what, ..)| what.starts_with(&plan.only)) {
        // A new one for each: a turn takes longer the more turns its session had.
        let session = caller.session(&agent, None).await?;
        turn(&caller, &session).await?;
        let span = Duration::from_secs(plan.seconds);
        let alone = turns(&caller, &session, span / 2).await?;
        let mut greedy = Vec::new();
        for _ in 0..count {
            let made = caller.post("/sessions", &json!({})).await?;
            greedy.push(made["session"]["id"].as_str().context("an id")?.to_owned());
        }
        let command = json!({ "command": script, "timeout_seconds": plan.seconds + 5 });
        let paths: Vec<_> = greedy.iter().map(|greedy| format!("/sessions/{greedy}/exec")).collect();
        let commands: FuturesUnordered<_> = paths.iter().map(|path| caller.post(path, &command)).collect();
        let mut commands = pin!(commands);
        let beside = async {
            tokio::time::sleep(HEAD_START).await;
            turns(&caller, &session, span).await
        };
        let beside = tokio::select! {
            beside = beside => beside?,
            Some(ended) = commands.next() => {
                anyhow::bail!("the neighbor ({what}) ended too soon: {:?}", ended.map(|answer| answer.to_string()));
            }
        };
        for ended in greedy.iter().chain([&session]) {
            caller.post(&format!("/sessions/{ended}/archive"), &json!({})).await?;
            gone(&caller, ended).await?;
        }
        let both = |mut times: Vec<Duration>| [50, 90].map(|part| percentile_ms(&mut times, part));
        let one = Beside { what, turns: beside.len(), alone: both(alone), beside: both(beside) };
        println!("{what}: {:.1?} ms alone, {:.1?} ms beside it ({} turns)", one.alone, one.beside, one.turns);
        all.push(one);
    }
    service.stop().await?;
    ensure!(!all.is_empty(), "no neighbor has a name that begins with `{}`", plan.only);
    Ok(all)
}

/// Turns one after the other for a while.
async fn turns(caller: &Caller, session: &str, span: Duration) -> anyhow::Result<Vec<Duration>> {
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < span || times.is_empty() {
        times.push(turn(caller, session).await?);
    }
    Ok(times)
}

/// One turn with a command, from the message to its end.
async fn turn(caller: &Caller, session: &str) -> anyhow::Result<Duration> {
    let command = "echo here > file && cat file";
    let steps = [
        json!({ "tools": [{ "tool": "bash", "input": { "command": command } }] }),
        json!({ "text": "Done." }),
    ];
    let after = head(&caller.get(&format!("/sessions/{session}")).await?)?;
    let mut reader = caller.follow(session, after).await?;
    let began = Instant::now();
    caller.steer(session, &json!({ "script": steps }).to_string()).await?;
    let result = timeout(Duration::from_secs(60), async {
        let result = reader.until("tool.result").await?;
        reader.until("turn.completed").await?;
        anyhow::Ok(result)
    });
    let result = result.await.context("a turn did not end")??;
    ensure!(result["body"]["output"] == "here\n", "a command of the ordinary session failed: {result}");
    Ok(began.elapsed())
}

fn head(session: &Value) -> anyhow::Result<i64> {
    session["head"].as_i64().context("the head of a session")
}

/// Waits until the sandbox of an archived session is gone.
async fn gone(caller: &Caller, session: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    while !caller.get(&format!("/sessions/{session}")).await?["sandbox"].is_null() {
        ensure!(began.elapsed() < Duration::from_secs(60), "a sandbox is still there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn chapter(run: &Run, measured: &[Beside]) -> String {
    let row = |one: &Beside| {
        let ratio = one.beside[0] / one.alone[0];
        let verdict = if ratio <= RATIO_MAX { "met" } else { "missed" };
        let [alone, beside] = [one.alone, one.beside].map(|[half, most]| format!("{half:.1}, {most:.1}"));
        format!("| {} | {alone} | {beside} | {ratio:.2}, {verdict} | {} |\n", one.what, one.turns)
    };
    let rows: String = measured.iter().map(row).collect();
    format!(
        "{CHAPTER}\n\nTurns with one command in an ordinary session, alone and beside a session that takes all that it can \
         get. Goal: at most\ntwice as long. Measured at commit {}, {}, by `{}`:\n{}.\n\n\
         | the neighbor takes | alone, p50, p90 (ms) | beside it, p50, p90 (ms) | ratio of the p50, goal | turns |\n|---|---|---|---|---|\n{rows}",
        run.commit, run.date, run.command, run.machine,
    )
}
