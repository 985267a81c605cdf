//! Commit, date, command and machine of a run, which stand beside every published figure.
//!
//! Also part of the chaos test, which publishes figures too.

use std::{env, fs, process::Command};

use sojourn::base::Origin;

/// Origin of the figures of one run.
#[derive(Clone, Debug)]
pub struct Run {
    pub commit: String,
    pub date: String,
    pub command: String,
    pub machine: String,
}

impl Run {
    /// Describes this process: `target` is the name of the test target, `postgres` the version of its server.
    pub fn new(target: &str, postgres: &str) -> anyhow::Result<Self> {
        let release = if cfg!(debug_assertions) { "" } else { "--release " };
        let mut words = vec![format!("cargo test {release}--locked --test {target} --")];
        words.extend(env::args().skip(1));
        Ok(Self {
            commit: commit(),
            date: Origin::system().now().date().to_string(),
            command: words.join(" "),
            machine: machine(postgres)?,
        })
    }

    /// Cells of a table row: commit, date, command, machine.
    pub fn cells(&self) -> String {
        let Self { commit, date, command, machine } = self;
        format!("{commit} | {date} | `{}` | {machine}", command.replace('|', "/"))
    }
}

/// The checked out commit. Edits of tracked files are mentioned, because the figures are not of the commit alone.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let done = Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output();
        let done = done.ok().filter(|done| done.status.success())?;
        Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=9", "HEAD"]) else { return "unknown".to_owned() };
    let edited =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|files| !files.is_empty());
    format!("`{commit}`{}", if edited { " with uncommitted changes" } else { "" })
}

/// The machine and the build, in one line.
fn machine(postgres: &str) -> anyhow::Result<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let cpu =
        after(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "an unnamed processor".to_owned());
    let memory = after(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let memory: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    Ok(format!(
        "{} cores of {cpu}, {} GB of memory, Linux {}, Postgres {postgres}, {build}",
        std::thread::available_parallelism()?,
        memory / 1_000_000,
        kernel.trim()
    ))
}
