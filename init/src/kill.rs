//! Finding and signaling all descendants of a process.
//!
//! Called by runners (their command's tree) and by init (the remains of a dead runner). A process that forks
//! twice and calls setsid remains a descendant, because orphans get the nearest subreaper, the runner, as
//! parent. A pid is only signaled by the process that would reap its ancestors, within one scan.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Time until all processes have stopped. The sandbox's process limit bounds a fork bomb: its stopped processes soon
/// use all slots.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the system calls that no signal interrupts: a write that ends later would be missing from an archive. One that
/// waits for a stopped process, as `vfork` does, never ends.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two scans for processes that have not stopped.
const STOP_SCAN_INTERVAL: Duration = Duration::from_micros(200);
/// SIGSTOPs to a process for each scan: one that is continued by another between two of them is stopped by a later one.
const STOPS_PER_SCAN: usize = 8;

/// Fields of `/proc/<pid>/stat` between the parent's pid and the number of threads.
const THREADS_AFTER_PARENT: usize = 15;

/// State of a process, as far as a stop needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Stopped,
    /// In a system call that no signal interrupts: it stops at the end of the call.
    Uninterruptible,
    Runs,
}

/// Sends a signal, then SIGCONT, so that stopped processes handle it.
pub(crate) fn signal_descendants(root: u32, sent: Signal) {
    for &pid in descendants(root).keys() {
        signal(pid, sent);
        signal(pid, Signal::CONT);
    }
}

/// Sends SIGKILL. All processes are stopped first: a stopped process cannot fork and still counts towards the
/// limit, so the set of processes cannot outgrow the scans.
pub(crate) fn kill_descendants(root: u32) {
    stop_descendants(root);
    for &pid in descendants(root).keys() {
        signal(pid, Signal::KILL);
    }
}

/// Sends SIGSTOP until no running descendant is left. A process that another one has continued meanwhile is stopped
/// again.
pub(crate) fn stop_descendants(root: u32) {
    let until = Instant::now() + STOP_TIMEOUT;
    let (mut signaled, mut still_scans) = (BTreeSet::new(), 0);
    let mut calls_until = None;
    loop {
        let found = descendants(root);
        let moving: Vec<u32> =
            found.iter().filter(|(_, state)| **state != State::Stopped).map(|(pid, _)| *pid).collect();
        let is_in_call = |pid: &u32| found[pid] == State::Uninterruptible && signaled.contains(pid);
        let is_still = moving.iter().all(is_in_call)
            && (moving.is_empty()
                || Instant::now() >= *calls_until.get_or_insert_with(|| Instant::now() + CALL_TIMEOUT));
        // One that had yet to stop may have continued another that had, so one look is not enough.
        still_scans = if is_still { still_scans + 1 } else { 0 };
        if still_scans == 2 || Instant::now() >= until {
            break;
        }
        for _ in 0..STOPS_PER_SCAN {
            moving.iter().for_each(|&pid| signal(pid, Signal::STOP));
        }
        signaled.extend(moving);
        if !is_still {
            thread::sleep(STOP_SCAN_INTERVAL);
        }
    }
}

/// Sends SIGCONT to stopped descendants.
pub(crate) fn continue_descendants(root: u32) {
    for &pid in descendants(root).keys() {
        signal(pid, Signal::CONT);
    }
}

/// Sends SIGCONT to one process.
pub(crate) fn continue_process(pid: u32) {
    signal(pid, Signal::CONT);
}

/// Kills children of init that are neither runners nor helpers: processes of a command whose runner died
/// early.
pub(crate) fn kill_orphans(own_children: &BTreeSet<u32>) {
    for (pid, parent, _) in processes() {
        if parent == 1 && !own_children.contains(&pid) {
            kill_descendants(pid);
            signal(pid, Signal::KILL);
        }
    }
}

/// Every live descendant of `root`.
fn descendants(root: u32) -> BTreeMap<u32, State> {
    let all = processes();
    let mut found = BTreeMap::new();
    let mut frontier = vec![root];
    while let Some(parent) = frontier.pop() {
        for &(pid, its_parent, state) in &all {
            if its_parent == parent && found.insert(pid, state).is_none() {
                frontier.push(pid);
            }
        }
    }
    found
}

/// Pid, parent pid and state of every process of the sandbox that is not a zombie without threads.
fn processes() -> Vec<(u32, u32, State)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
            let (parent, state) = parent_of_living(&stat)?;
            Some((pid, parent, state))
        })
        .collect()
}

/// Parent pid and state from `/proc/<pid>/stat`: `pid (name) state ppid ..`. The name may contain any characters,
/// including parentheses and line ends.
fn parent_of_living(stat: &[u8]) -> Option<(u32, State)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let state = match state {
        // Its main thread has ended; others may run. Their number is the 20th field of the file.
        "Z" if fields.nth(THREADS_AFTER_PARENT)?.parse().is_ok_and(|threads: u32| threads > 1) => State::Runs,
        "Z" | "X" => return None,
        "T" | "t" => State::Stopped,
        "D" => State::Uninterruptible,
        _ => State::Runs,
    };
    Some((parent, state))
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The process may have ended meanwhile; the next scan finds out.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_hide_a_parent() {
        assert_eq!(parent_of_living(b"7 (sh) S 3 7 7 0"), Some((3, State::Runs)));
        assert_eq!(parent_of_living(b"7 (a) R 1 (\xff\n) T 3 7"), Some((3, State::Stopped)));
        let ended = |threads: &str| format!("7 (sh) Z 3 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 1");
        assert_eq!(parent_of_living(ended("1").as_bytes()), None);
        assert_eq!(parent_of_living(ended("3").as_bytes()), Some((3, State::Runs)));
        assert_eq!(parent_of_living(b"7 (sh"), None);
    }

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(descendants(std::process::id()).contains_key(&child.id()));
        kill_descendants(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn processes_that_continue_each_other_are_stopped() {
        let script = "for i in 1 2 3; do (while :; do kill -CONT -- -$$; done) & done; wait";
        let mut tree = std::process::Command::new("setsid").args(["bash", "-c", script]).spawn().unwrap();
        while descendants(tree.id()).len() < 3 {
            thread::sleep(STOP_SCAN_INTERVAL);
        }
        stop_descendants(tree.id());
        let is_stopped = descendants(tree.id()).values().all(|state| *state == State::Stopped);
        kill_descendants(tree.id());
        tree.kill().unwrap();
        tree.wait().unwrap();
        assert!(is_stopped);
    }
}
