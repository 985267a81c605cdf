//! Finding and signaling all descendants of a process.
//!
//! Called by runners (their command's tree) and by init (the remains of a dead runner). A process that forks
//! twice and calls setsid remains a descendant, because orphans get the nearest subreaper, the runner, as
//! parent. A pid is only signaled by the process that would reap its ancestors, within one scan.

use std::{collections::BTreeSet, fs};

use rustix::process::{Pid, Signal, kill_process};

/// Maximum scans until a stop finds no new process. The sandbox's process limit bounds a fork bomb: its
/// stopped processes soon use all slots.
const STOP_SCANS_MAX: usize = 1_000;

/// Sends a signal, then SIGCONT, so that stopped processes handle it.
pub(crate) fn signal_descendants(root: u32, sent: Signal) {
    for pid in descendants(root) {
        signal(pid, sent);
        signal(pid, Signal::CONT);
    }
}

/// Sends SIGKILL. All processes are stopped first: a stopped process cannot fork and still counts towards the
/// limit, so the set of processes cannot outgrow the scans.
pub(crate) fn kill_descendants(root: u32) {
    stop_descendants(root);
    for pid in descendants(root) {
        signal(pid, Signal::KILL);
    }
}

/// Sends SIGSTOP until no running descendant is left.
pub(crate) fn stop_descendants(root: u32) {
    let mut stopped = BTreeSet::new();
    for _ in 0..STOP_SCANS_MAX {
        let found: Vec<u32> = descendants(root).into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if found.is_empty() {
            break;
        }
        for pid in found {
            signal(pid, Signal::STOP);
            stopped.insert(pid);
        }
    }
}

/// Sends SIGCONT to stopped descendants.
pub(crate) fn continue_descendants(root: u32) {
    for pid in descendants(root) {
        signal(pid, Signal::CONT);
    }
}

/// Kills children of init that are neither runners nor helpers: processes of a command whose runner died
/// early.
pub(crate) fn kill_orphans(own_children: &BTreeSet<u32>) {
    for (pid, parent) in processes() {
        if parent == 1 && !own_children.contains(&pid) {
            kill_descendants(pid);
            signal(pid, Signal::KILL);
        }
    }
}

/// Every live descendant of `root`.
fn descendants(root: u32) -> BTreeSet<u32> {
    let all = processes();
    let mut found = BTreeSet::new();
    let mut frontier = vec![root];
    while let Some(parent) = frontier.pop() {
        for &(pid, its_parent) in &all {
            if its_parent == parent && found.insert(pid) {
                frontier.push(pid);
            }
        }
    }
    found
}

/// Pid and parent pid of every process of the sandbox that is not a zombie.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parent_of_living(&stat)?))
        })
        .collect()
}

/// Parent pid from `/proc/<pid>/stat`: `pid (name) state ppid ..`. The name may contain any characters,
/// including parentheses and line ends.
fn parent_of_living(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then_some(())?;
    fields.next()?.parse().ok()
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
        assert_eq!(parent_of_living(b"7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent_of_living(b"7 (a) R 1 (\xff\n) S 3 7"), Some(3));
        assert_eq!(parent_of_living(b"7 (sh) Z 3 7"), None);
        assert_eq!(parent_of_living(b"7 (sh"), None);
    }

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(descendants(std::process::id()).contains(&child.id()));
        kill_descendants(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
