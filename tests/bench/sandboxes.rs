//! `bench sandboxes`: resources of unused sandboxes: many frozen ones at the same time, then many hibernated
//! sessions. An ordinary service creates them.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use sojourn::{
    domain::SandboxId,
    node::local::{Config, Local},
    sandbox::Sandbox,
};
use sqlx::Connection;

use crate::{
    ground::{Ground, Process},
    http::Caller,
    report,
    run::Run,
};

/// Sizes of the measurement.
#[derive(Clone, Debug, Args)]
pub struct Sandboxes {
    /// Sandboxes that are frozen at the same time
    #[arg(long, default_value_t = 500)]
    pub frozen: usize,
    /// Sessions that are hibernated in the end
    #[arg(long, default_value_t = 1_000)]
    pub asleep: usize,
    /// Write the chapter of docs/sandboxes.md
    #[arg(long)]
    pub write: bool,
}

/// The page with the figures, and their chapter.
const PAGE: &str = "docs/sandboxes.md";
const CHAPTER: &str = "## Resource use of idle sandboxes";
/// Sessions that are created concurrently.
const TOGETHER: usize = 4;
const PATIENCE: Duration = Duration::from_secs(900);

/// Resources on the machine of one service's sandboxes.
#[derive(Debug, Default)]
struct Taken {
    sandboxes: usize,
    frozen: usize,
    processes: usize,
    /// Proportional set size of those processes, in bytes.
    shares: u64,
    /// Memory that their cgroups count, in bytes.
    counted: u64,
    mounts: usize,
    loops: usize,
    /// Disk usage of sandbox disks and checkpoints, in bytes.
    disks: u64,
    checkpoints: u64,
    /// Memory of the service itself, and its open files.
    service: u64,
    files: usize,
}

/// Measures, prints, and writes the chapter.
pub async fn run(plan: &Sandboxes) -> anyhow::Result<()> {
    let ground = Ground::start().await?;
    let rests = measure(plan, &ground).await;
    let cleared = ground.clear().await;
    let chapter = rests?;
    cleared?;
    println!("\n{chapter}");
    if plan.write {
        report::replace_chapter(PAGE, CHAPTER, &chapter)?;
        println!("written: {PAGE}");
    }
    Ok(())
}

async fn measure(plan: &Sandboxes, ground: &Ground) -> anyhow::Result<String> {
    let serve = async |hibernate_after: u64| {
        let rests = format!("--sandbox-hibernate-after-seconds={hibernate_after}");
        ground
            .serve(&["--role=all", "--max-concurrent-turns=4", "--sandbox-freeze-after-seconds=1", &rests])
            .await
    };
    // Created by one process, frozen, and attached by the next one.
    let service = serve(86_400).await?;
    let before = Taken::of(ground, &service).await?;
    let began = Instant::now();
    let mut sessions = make(&service, plan.frozen).await?;
    println!("{} sessions created in {:.0} s", plan.frozen, began.elapsed().as_secs_f64());
    let frozen = until(ground, &service, |taken| taken.frozen == plan.frozen).await?;
    println!("{frozen:?}");
    service.stop().await?;

    let service = serve(2).await?;
    // Makes their hibernation due.
    let mut connection = ground.connection().await?;
    sqlx::query("update job set ready_at = now() where kind = 'idle'").execute(&mut connection).await?;
    connection.close().await?;
    let began = Instant::now();
    sessions.extend(make(&service, plan.asleep.saturating_sub(plan.frozen)).await?);
    println!("{} more sessions created in {:.0} s", plan.asleep - plan.frozen, began.elapsed().as_secs_f64());
    let asleep = until(ground, &service, |taken| taken.sandboxes == 0).await?;
    println!("{asleep:?}");
    // They are hibernated, not lost.
    let caller = Caller::of(service.address)?;
    for session in [sessions.first(), sessions.last()].into_iter().flatten() {
        let read =
            caller.post(&format!("/sessions/{session}/exec"), &json!({ "command": "cat file" })).await?;
        ensure!(read["stdout"] == "here\n", "a session was restored without its file: {read}");
    }
    for session in &sessions {
        caller.post(&format!("/sessions/{session}/archive"), &json!({})).await?;
    }
    until(ground, &service, |taken| taken.sandboxes == 0 && taken.disks < 1 << 20).await?;
    service.stop().await?;
    Ok(chapter(&report::run(ground).await?, &before, &frozen, &asleep, plan))
}

/// Creates sessions, each with a sandbox in which a command has written a file.
async fn make(service: &Process, count: usize) -> anyhow::Result<Vec<String>> {
    let caller = Caller::of(service.address)?;
    let one = async |_: usize| {
        let made = caller.post("/sessions", &json!({})).await?;
        let id = made["session"]["id"].as_str().context("an id")?.to_owned();
        let ran = json!({ "command": "echo here > file" });
        let ran = caller.post(&format!("/sessions/{id}/exec"), &ran).await?;
        ensure!(ran["exit_code"] == 0, "a command failed: {ran}");
        Ok(id)
    };
    stream::iter(0..count).map(one).buffer_unordered(TOGETHER).try_collect().await
}

async fn until(ground: &Ground, service: &Process, is_so: impl Fn(&Taken) -> bool) -> anyhow::Result<Taken> {
    let began = Instant::now();
    loop {
        let taken = Taken::of(ground, service).await?;
        if is_so(&taken) {
            return Ok(taken);
        }
        ensure!(began.elapsed() < PATIENCE, "the expected state was not reached: {taken:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

impl Taken {
    async fn of(ground: &Ground, service: &Process) -> anyhow::Result<Self> {
        let local = Local::new(Config::new(&ground.data_dir)).map_err(|fault| anyhow!("{fault}"))?;
        let sandboxes: HashSet<SandboxId> =
            local.list().await?.into_iter().filter_map(|found| found.sandbox).collect();
        let mut taken = Self { sandboxes: sandboxes.len(), ..Self::default() };
        for id in &sandboxes {
            // It may have ended meanwhile.
            let Ok(stats) = local.stats(*id).await else { continue };
            taken.frozen += usize::from(stats.is_frozen);
            taken.counted += stats.memory_bytes;
        }
        let names: HashSet<String> = sandboxes.iter().map(ToString::to_string).collect();
        for pid in entries(Path::new("/proc")) {
            let cgroups = fs::read_to_string(pid.join("cgroup")).unwrap_or_default();
            let is_of_sandbox = |line: &str| line.rsplit('/').next().is_some_and(|name| names.contains(name));
            if cgroups.lines().any(is_of_sandbox) {
                taken.processes += 1;
                taken.shares += kilobytes(&pid.join("smaps_rollup"), "Pss:").unwrap_or(0);
            }
        }
        let data_dir = ground.data_dir.to_string_lossy();
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        taken.mounts = mounts.lines().filter(|line| line.contains(&*data_dir)).count();
        let backing = entries(Path::new("/sys/block")).into_iter();
        let backing = backing.filter_map(|device| fs::read_to_string(device.join("loop/backing_file")).ok());
        taken.loops = backing.filter(|file| file.contains(&*data_dir)).count();
        taken.disks = size(&ground.data_dir.join("sandboxes"));
        taken.checkpoints = size(&ground.data_dir.join("blobs"));
        let process = PathBuf::from(format!("/proc/{}", service.pid));
        taken.service = kilobytes(&process.join("status"), "VmRSS:").context("the service's memory")?;
        taken.files = entries(&process.join("fd")).len();
        Ok(taken)
    }
}

fn entries(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Value of a line like `Pss: 12 kB`, in bytes.
fn kilobytes(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// Allocated disk space of files; holes are not counted.
fn size(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = fs::symlink_metadata(path) else { return 0 };
    // A mounted disk is counted by its image.
    let below = if meta.is_dir() && !path.ends_with("files") { entries(path) } else { Vec::new() };
    meta.blocks() * 512 + below.iter().map(|entry| size(entry)).sum::<u64>()
}

fn chapter(run: &Run, before: &Taken, frozen: &Taken, asleep: &Taken, plan: &Sandboxes) -> String {
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let each = |bytes: u64, count: usize| format!("{:.2} MB", bytes as f64 / 1e6 / count.max(1) as f64);
    let rows = [
        (
            "sandboxes, of these frozen",
            [before, frozen, asleep].map(|one| format!("{}, {}", one.sandboxes, one.frozen)),
        ),
        ("processes in sandboxes", [before, frozen, asleep].map(|one| one.processes.to_string())),
        (
            "memory of these processes (proportional set size)",
            [before, frozen, asleep].map(|one| mb(one.shares)),
        ),
        ("memory counted by their cgroups", [before, frozen, asleep].map(|one| mb(one.counted))),
        (
            "mounts, loop devices",
            [before, frozen, asleep].map(|one| format!("{}, {}", one.mounts, one.loops)),
        ),
        (
            "disks, checkpoints",
            [before, frozen, asleep].map(|one| format!("{}, {}", mb(one.disks), mb(one.checkpoints))),
        ),
        ("memory of the service", [before, frozen, asleep].map(|one| mb(one.service))),
        ("open files of the service", [before, frozen, asleep].map(|one| one.files.to_string())),
    ];
    let rows: String =
        rows.map(|(what, [a, b, c])| format!("| {what} | {a} | {b} | {c} |\n")).into_iter().collect();
    format!(
        "{CHAPTER}\n\nOne service: {} sandboxes frozen at the same time, each with one file, then {} hibernated \
         sessions. Measured at commit\n{}, {}, by `{}`: {}.\n\n\
         | | before | {} frozen | {} hibernated |\n|---|---|---|---|\n{rows}\n\
         A frozen sandbox uses {} as counted by its cgroup, of which {} is its process. A second service process took \
         over the\nfrozen sandboxes of the first and hibernated them. The file of the first and of the last session \
         was read back.\n",
        plan.frozen,
        plan.asleep,
        run.commit,
        run.date,
        run.command,
        run.machine,
        frozen.sandboxes,
        plan.asleep,
        each(frozen.counted, frozen.sandboxes),
        each(frozen.shares, frozen.sandboxes),
    )
}
