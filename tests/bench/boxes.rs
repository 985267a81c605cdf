//! `bench boxes`: what boxes cost by themselves, without a service around them: the
//! first command of each state beside the raw runtime, many frozen ones, many that sleep.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;
use sojourn::{
    base::Origin,
    blob::Blobs,
    sandbox::{
        BoxLimits, Exec, Grip, Sandbox, Spec, checkpoint,
        local::{Config, Local},
    },
};

use crate::stats::percentile_ms;

/// How much of it.
#[derive(Clone, Debug, Args)]
pub struct Boxes {
    /// Times that each state's first command is measured
    #[arg(long, default_value_t = 20)]
    pub times: usize,
    /// Boxes that are frozen at the same time
    #[arg(long, default_value_t = 500)]
    pub frozen: usize,
    /// Sessions that are put to sleep one after the other
    #[arg(long, default_value_t = 1_000)]
    pub asleep: usize,
    /// The OCI runtime
    #[arg(long, default_value = "runc")]
    pub runtime: String,
}

/// Bytes of files in the checkpoint that is restored.
const CHECKPOINT: &str = "for at in $(seq 200); do head -c 100000 /dev/urandom > f$at; done";

struct Place {
    local: Local,
    blobs: Blobs,
    origin: Origin,
    directory: tempfile::TempDir,
    runtime: String,
}

/// Measures and prints.
pub async fn run(plan: &Boxes) -> anyhow::Result<()> {
    let directory = tempfile::Builder::new().prefix("sojourn-bench-").tempdir()?;
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    let config = Config {
        runtime: plan.runtime.clone(),
        run_dir: directory.path().join("run"),
        ..Config::new(&directory.path().join("data"))
    };
    let place = Place {
        local: Local::new(config).map_err(|fault| anyhow!("{fault}"))?,
        blobs: Blobs::local(&directory.path().join("blobs"))?,
        origin: Origin::system(),
        directory,
        runtime: plan.runtime.clone(),
    };
    place.first_commands(plan.times).await?;
    place.many_frozen(plan.frozen).await?;
    place.many_asleep(plan.asleep).await
}

impl Place {
    fn spec(&self) -> Spec {
        Spec {
            sandbox: self.origin.id(),
            tenant: self.origin.id(),
            session: self.origin.id(),
            limits: BoxLimits::default(),
            rootfs: Default::default(),
            env: Vec::new(),
            previous: Vec::new(),
            restores: false,
        }
    }

    /// The time of each state's first command, and of the raw runtime's in the same run.
    async fn first_commands(&self, times: usize) -> anyhow::Result<()> {
        let names = ["raw runtime", "cold", "warm", "frozen", "restored, 20 MB"];
        let mut taken: Vec<Vec<Duration>> = vec![Vec::new(); names.len()];
        for _ in 0..times {
            let spec = self.spec();
            let grip = Grip { sandbox: spec.sandbox, epoch: 1 };
            let began = Instant::now();
            self.local.create(&spec, 1).await?;
            self.command(grip, "cold", "true").await?;
            taken[1].push(began.elapsed());
            let began = Instant::now();
            self.command(grip, "warm", "true").await?;
            taken[2].push(began.elapsed());
            self.local.freeze(grip).await?;
            let began = Instant::now();
            self.local.attach(grip).await?;
            self.command(grip, "frozen", "true").await?;
            taken[3].push(began.elapsed());
            // Of the bundle that is there: only the runtime's own work.
            taken[0].push(self.raw(&spec).await?);
            self.command(grip, "fill", CHECKPOINT).await?;
            let saved = checkpoint::save(&self.local, grip, &self.blobs, "s", None).await?;
            self.end(&spec).await?;
            let next = Spec { sandbox: self.origin.id(), restores: true, ..spec };
            let grip = Grip { sandbox: next.sandbox, epoch: 2 };
            let began = Instant::now();
            self.local.create(&next, 2).await?;
            checkpoint::load(&self.local, grip, &self.blobs, "s", &saved.digest).await?;
            self.command(grip, "restored", "true").await?;
            taken[4].push(began.elapsed());
            self.end(&next).await?;
        }
        println!("first command, {times} times, ms: p50, p99");
        for (name, taken) in names.iter().zip(&mut taken) {
            println!("  {name:<16} {:>8.1} {:>8.1}", percentile_ms(taken, 50), percentile_ms(taken, 99));
        }
        Ok(())
    }

    /// A container of the same configuration, without what makes it a session's: `true`
    /// in the place of init.
    async fn raw(&self, spec: &Spec) -> anyhow::Result<Duration> {
        let box_dir = self.directory.path().join("run/boxes").join(spec.sandbox.to_string());
        let bundle = self.directory.path().join("raw");
        fs::create_dir_all(&bundle)?;
        let text = fs::read_to_string(box_dir.join("config.json"))?;
        let mut config: serde_json::Value = serde_json::from_str(&text)?;
        config["process"]["args"] = serde_json::json!(["/bin/true"]);
        config["linux"]["cgroupsPath"] = serde_json::json!("/sojourn-bench-raw");
        fs::write(bundle.join("config.json"), config.to_string())?;
        let began = Instant::now();
        let status = tokio::process::Command::new(&self.runtime)
            .arg("--root")
            .arg(self.directory.path().join("raw-state"))
            .args(["run", "--bundle"])
            .arg(&bundle)
            .arg("raw")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .await?;
        anyhow::ensure!(status.success(), "the raw runtime failed");
        Ok(began.elapsed())
    }

    async fn many_frozen(&self, count: usize) -> anyhow::Result<()> {
        let before = available_mb()?;
        let mut all = Vec::new();
        let mut bytes = 0;
        for _ in 0..count {
            let spec = self.spec();
            let grip = Grip { sandbox: spec.sandbox, epoch: 1 };
            self.local.create(&spec, 1).await?;
            self.command(grip, "first", "echo here > file").await?;
            self.local.freeze(grip).await?;
            bytes += self.local.stats(spec.sandbox).await?.memory_bytes;
            all.push(spec);
        }
        let taken = before.saturating_sub(available_mb()?);
        println!(
            "{count} frozen boxes: {:.1} MB of memory counted to them, {taken} MB less available on the machine",
            bytes as f64 / 1e6
        );
        for spec in &all {
            self.end(spec).await?;
        }
        Ok(())
    }

    async fn many_asleep(&self, count: usize) -> anyhow::Result<()> {
        let (before, began) = (available_mb()?, Instant::now());
        for at in 0..count {
            let spec = self.spec();
            let grip = Grip { sandbox: spec.sandbox, epoch: 1 };
            self.local.create(&spec, 1).await?;
            self.command(grip, "first", &format!("echo {at} > file")).await?;
            checkpoint::save(&self.local, grip, &self.blobs, &format!("asleep/{at}"), None).await?;
            self.end(&spec).await?;
        }
        let blobs = size(&self.directory.path().join("blobs/asleep"));
        let left = self.local.list().await?.len();
        let taken = before.saturating_sub(available_mb()?);
        println!(
            "{count} sessions asleep, {:.1} s: {left} boxes and disks, {blobs} bytes of checkpoints, \
             {taken} MB less available on the machine",
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    async fn command(&self, grip: Grip, id: &str, script: &str) -> anyhow::Result<()> {
        let exec = Exec {
            id: id.to_owned(),
            argv: ["bash", "-c", script].map(str::to_owned).into(),
            cwd: String::new(),
            env: Vec::new(),
            timeout: Duration::from_secs(60),
            output_bytes_max: 1 << 10,
        };
        self.local.start(grip, &exec).await?;
        let exit = self.local.wait(grip, id).await?;
        anyhow::ensure!(exit.code == 0, "{script} ended with {}", exit.code);
        Ok(())
    }

    async fn end(&self, spec: &Spec) -> anyhow::Result<()> {
        self.local.destroy(spec.sandbox).await?;
        Ok(self.local.erase(spec.tenant, spec.session).await?)
    }
}

fn available_mb() -> anyhow::Result<u64> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let line =
        memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("no MemAvailable")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1_000)
}

fn size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let bytes = |path: PathBuf| {
        if path.is_dir() { size(&path) } else { fs::metadata(&path).map_or(0, |meta| meta.len()) }
    };
    entries.map(|entry| bytes(entry.path())).sum()
}
