//! CPU time and memory, from the counters of the operating system.

use std::{fs, time::Duration};

use anyhow::Context;

/// Ticks of `/proc/<pid>/stat` per second; fixed in the Linux ABI.
const TICKS: f64 = 100.0;

/// CPU time of this process so far.
pub fn own() -> anyhow::Result<Duration> {
    process(std::process::id())
}

/// CPU time of a process so far.
pub fn process(pid: u32) -> anyhow::Result<Duration> {
    let stat = Stat::of(pid)?;
    Ok(ticks(stat.own))
}

/// CPU time of a server and all its children, including those that have ended.
pub fn server(postmaster: u32) -> anyhow::Result<Duration> {
    let parent = Stat::of(postmaster)?;
    let mut all = parent.own + parent.children;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may end after the listing: its time is then included in the parent's.
        if let Ok(stat) = Stat::of(pid)
            && stat.parent == postmaster
        {
            all += stat.own + stat.children;
        }
    }
    Ok(ticks(all))
}

/// Resident memory of a process, in bytes.
pub fn memory(pid: u32) -> anyhow::Result<f64> {
    status(pid, "VmRSS:")
}

/// Peak resident memory of a process since [`reset_peak`], in bytes.
pub fn peak_memory(pid: u32) -> anyhow::Result<f64> {
    status(pid, "VmHWM:")
}

/// Resets the peak memory of a process; see proc_pid_clear_refs(5).
pub fn reset_peak(pid: u32) -> anyhow::Result<()> {
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

fn status(pid: u32, name: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1_024.0)
}

struct Stat {
    parent: u32,
    own: u64,
    children: u64,
}

impl Stat {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The process name may contain any character; the fields are counted from its end.
        let (_, rest) = text.rsplit_once(')').context("a line of /proc")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields[at].parse::<u64>();
        Ok(Self {
            parent: fields[1].parse()?,
            own: number(11)? + number(12)?,
            children: number(13)? + number(14)?,
        })
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / TICKS)
}
