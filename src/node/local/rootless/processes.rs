//! The processes of a sandbox without a cgroup.
//!
//! Called by `rootless`. Every process of a sandbox has the sandbox's directory among its mounts, and no
//! command can create mounts of its own. The runtime that creates a sandbox has the directory among its
//! arguments. The service may signal all of them, because it created the parent of their user namespace. A
//! process is opened as a pidfd and then checked again before it is signaled, so that a reused pid is never
//! signaled.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fd::OwnedFd,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{super::unavailable, users::Users};
use crate::{
    base::limit::{FREEZE_TIMEOUT, SANDBOX_END_TIMEOUT, SANDBOX_START_POLL},
    domain::SandboxId,
    sandbox::{Fault, Stats},
};

/// Marker file in a sandbox's directory while its processes are frozen or being frozen.
const FROZEN: &str = "frozen";
/// Clock ticks per second in which the kernel reports CPU time (proc(5), USER_HZ).
const TICKS: u64 = 100;

/// A process, opened as a pidfd.
struct Process {
    pid: i32,
    held: OwnedFd,
}

/// Kills all processes of a sandbox.
///
/// # Errors
/// `Unavailable` when a process does not end in time; the sandbox then still exists.
pub(super) async fn end(users: &Users, sandbox: SandboxId) -> Result<(), Fault> {
    let until = Instant::now() + SANDBOX_END_TIMEOUT;
    loop {
        let found = of(users, sandbox);
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Fault::Unavailable(format!("processes of {sandbox} did not end in time")));
        }
        signal(&found, Signal::KILL);
        tokio::time::sleep(SANDBOX_START_POLL.0).await;
    }
}

/// Stops or continues every process. No effect if the sandbox is already in that state.
pub(super) async fn freeze(
    users: &Users,
    sandbox: SandboxId,
    sandbox_dir: &Path,
    freeze: bool,
) -> Result<(), Fault> {
    let mark = sandbox_dir.join(FROZEN);
    let failed = |error: io::Error| unavailable("the frozen state cannot be recorded", &error);
    if mark.exists() == freeze {
        return Ok(());
    }
    if !freeze {
        signal(&of(users, sandbox), Signal::CONT);
        return fs::remove_file(mark).map_err(failed);
    }
    // Write the marker first: after a crash, the next caller must know that there are processes to continue.
    match fs::write(&mark, "") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Fault::Gone),
        written => written.map_err(failed)?,
    }
    let until = Instant::now() + FREEZE_TIMEOUT;
    let mut signaled = BTreeSet::new();
    loop {
        let found = of(users, sandbox);
        if found.is_empty() {
            return Err(Fault::Gone);
        }
        // A process may start others, or continue them, before it is stopped; the next iteration finds them.
        let is_stopped = |one: &Process| {
            signaled.contains(&one.pid) && state(one.pid).is_none_or(|state| matches!(state, 'T' | 't'))
        };
        let running: Vec<_> = found.into_iter().filter(|one| !is_stopped(one)).collect();
        if running.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            // A partly frozen sandbox would hang its next caller.
            signal(&of(users, sandbox), Signal::CONT);
            fs::remove_file(mark).map_err(failed)?;
            return Err(Fault::Unavailable("freezing or thawing timed out".to_owned()));
        }
        signal(&running, Signal::STOP);
        signaled.extend(running.iter().map(|one| one.pid));
        tokio::time::sleep(SANDBOX_START_POLL.0).await;
    }
}

/// Total usage of the processes. Shared memory is divided among them (PSS), so it counts once.
pub(super) fn stats(users: &Users, sandbox: SandboxId, sandbox_dir: &Path) -> Stats {
    let found = of(users, sandbox);
    let ticks: u64 = found.iter().filter_map(|process| ticks(process.pid)).sum();
    Stats {
        memory_bytes: found.iter().filter_map(|process| memory_bytes(process.pid)).sum(),
        processes: found.len() as u64,
        cpu: Duration::from_millis(ticks * 1_000 / TICKS),
        is_frozen: !found.is_empty() && sandbox_dir.join(FROZEN).exists(),
    }
}

fn signal(processes: &[Process], signal: Signal) {
    for process in processes {
        // The process may have ended meanwhile; the next iteration finds out.
        let _ = pidfd_send_signal(&process.held, signal);
    }
}

/// Every live process of the sandbox, sorted by pid.
fn of(users: &Users, sandbox: SandboxId) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<Process> = pids
        .filter(|&pid| belongs(users, pid, sandbox))
        .filter_map(|pid| {
            let held = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            Some(Process { pid, held })
        })
        // Check again: the pid may have been reused before the pidfd was opened.
        .filter(|process| belongs(users, process.pid, sandbox))
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn belongs(users: &Users, pid: i32, sandbox: SandboxId) -> bool {
    let place = format!("/proc/{pid}");
    if !fs::metadata(&place).is_ok_and(|process| users.owns(process.uid())) {
        return false;
    }
    // A process that has ended has no mounts.
    let mounts = fs::read(format!("{place}/mountinfo")).unwrap_or_default();
    let arguments = fs::read(format!("{place}/cmdline")).unwrap_or_default();
    is_mounted(&mounts, sandbox) || is_made(&arguments, sandbox)
}

fn is_mounted(mountinfo: &[u8], sandbox: SandboxId) -> bool {
    let needle = format!("/sandboxes/{sandbox}/control ");
    mountinfo.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Whether these are the arguments of a runtime that creates the sandbox.
fn is_made(cmdline: &[u8], sandbox: SandboxId) -> bool {
    let bundle = format!("/sandboxes/{sandbox}");
    let words: Vec<&[u8]> = cmdline.split(|&byte| byte == 0).collect();
    words.windows(2).any(|pair| pair[0] == b"--bundle" && pair[1].ends_with(bundle.as_bytes()))
}

/// Fields of `/proc/<pid>/stat` after the name, starting with the state.
fn fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = String::from_utf8_lossy(&stat[name_end + 1..]).into_owned();
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

fn state(pid: i32) -> Option<char> {
    fields(pid)?.first()?.chars().next()
}

/// CPU time of a process and of the children it has waited for.
fn ticks(pid: i32) -> Option<u64> {
    Some(fields(pid)?.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum())
}

fn memory_bytes(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_sandbox_that_its_mounts_or_its_making_name() {
        let [one, other] = [1, 2].map(|bits| SandboxId::from_uuid(uuid::Uuid::from_u128(bits)));
        let mounts =
            format!("30 1 0:3 /s/ab/sandboxes/{one}/control /.sojourn/control rw - tmpfs tmpfs rw\n");
        assert!(is_mounted(mounts.as_bytes(), one) && !is_mounted(mounts.as_bytes(), other));
        let made =
            format!("runc\0run\0--bundle\0/run/s/sandboxes/{one}\0--pid-file\0/run/s/sandboxes/{one}/pid\0");
        assert!(is_made(made.as_bytes(), one) && !is_made(made.as_bytes(), other));
        let looked = format!("less\0/run/s/sandboxes/{one}/init.log\0");
        assert!(!is_made(looked.as_bytes(), one), "a reader of its files does not belong to it");
    }

    #[test]
    fn a_process_has_a_state_a_time_and_memory() {
        let own = std::process::id().cast_signed();
        assert!(matches!(state(own), Some('R' | 'S' | 'D')));
        assert!(ticks(own).is_some() && memory_bytes(own).is_some_and(|bytes| bytes > 0));
    }
}
