//! Finding and signalling every descendant of a process.
//!
//! Called by runners (their command's tree) and by init (what a dead runner left).
//! A double fork with setsid stays a descendant, because its orphans are given to
//! the nearest subreaper, the runner. A pid is only signalled by the process that
//! would reap its ancestors, within one scan.

use std::{collections::BTreeSet, fs};

use rustix::process::{Pid, Signal, kill_process};

/// Scans that a stop may take until it finds nothing new. A fork bomb is bounded by
/// the sandbox's process limit, so its stopped processes soon leave it no room to fork.
const STOP_SCANS_MAX: usize = 1_000;

/// A signal, and CONT so that a stopped process can obey.
pub fn signal_descendants(root: u32, sent: Signal) {
    for pid in descendants(root) {
        signal(pid, sent);
        signal(pid, Signal::CONT);
    }
}

/// KILL. Everything is stopped first: a stopped process forks no more and still
/// takes up its place, so the set of processes cannot run away from the killer.
pub fn kill_descendants(root: u32) {
    stop_descendants(root);
    for pid in descendants(root) {
        signal(pid, Signal::KILL);
    }
}

/// STOP, until no descendant is left that could start another.
pub fn stop_descendants(root: u32) {
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

/// CONT: what was stopped goes on.
pub fn continue_descendants(root: u32) {
    for pid in descendants(root) {
        signal(pid, Signal::CONT);
    }
}

/// Ends children of init that are neither runners nor helpers: a runner died
/// before its time and its command's processes came here.
pub fn kill_strangers(own_children: &BTreeSet<u32>) {
    for (pid, parent) in processes() {
        if parent == 1 && !own_children.contains(&pid) {
            kill_descendants(pid);
            signal(pid, Signal::KILL);
        }
    }
}

/// Every living descendant of `root`.
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

/// Pid and parent of every process of the sandbox that is not a zombie.
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

/// The parent's pid from `/proc/<pid>/stat`: `pid (name) state ppid ..`, where
/// the name may hold anything, parentheses and line ends included.
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
        // It may have ended meanwhile; the next scan tells.
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
