//! A temporary user of the machine without root privileges.
//!
//! The tests run as root. The user is in no table of the machine: its line of `/etc/passwd` and its
//! subordinate ids are in files that are mounted over those tables in a private mount namespace. Drop kills
//! all processes with its ids and removes its cgroups.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

/// Ids that no machine assigns; apart for tests that run in parallel.
const FIRST_USER: u32 = 1_860_000_000;
const FIRST_LENT: u32 = 1_200_000_000;
/// Number of subordinate ids that `useradd` assigns to a user.
const LENT: u32 = 65_536;
const RANGES: u32 = 4_096;

/// A user without root privileges and with its own directory.
pub struct OrdinaryUser {
    scratch: TempDir,
    uid: u32,
    lent: u32,
    /// Cgroup delegated to the user, relative to the root of each hierarchy.
    delegated: Option<String>,
}

impl OrdinaryUser {
    pub fn new() -> Self {
        let open_to_all = fs::Permissions::from_mode(0o711);
        let prefix = "sojourn-user-";
        let scratch = tempfile::Builder::new().prefix(prefix).permissions(open_to_all).tempdir().unwrap();
        let number = process::id();
        let user = Self {
            scratch,
            uid: FIRST_USER + number,
            lent: FIRST_LENT + number % RANGES * LENT,
            delegated: None,
        };
        let [passwd, group] =
            ["passwd", "group"].map(|table| fs::read_to_string(Path::new("/etc").join(table)).unwrap());
        let (uid, home) = (user.uid, user.home());
        let line = format!("sojourn-test:x:{uid}:{uid}::{}:/bin/sh\n", home.display());
        let lent = format!("sojourn-test:{}:{LENT}\n", user.lent);
        // Groups get another range than users, as machines may configure it.
        let groups = format!("sojourn-test:{}:{LENT}\n", user.lent + RANGES * LENT);
        let passwd = passwd + &line;
        let group = format!("{group}sojourn-test:x:{uid}:\n");
        for (name, content) in [("passwd", passwd), ("group", group), ("subuid", lent), ("subgid", groups)] {
            fs::write(user.scratch.path().join(name), content).unwrap();
        }
        fs::create_dir(user.scratch.path().join("bin")).unwrap();
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&home, Some(uid), Some(uid)).unwrap();
        user
    }

    /// A user whose subordinate group ids equal its user ids, as Docker requires.
    pub fn with_equal_ids() -> Self {
        let user = Self::new();
        fs::copy(user.scratch.path().join("subuid"), user.scratch.path().join("subgid")).unwrap();
        user
    }

    /// A user without subordinate ids.
    pub fn without_ids() -> Self {
        let user = Self::new();
        fs::write(user.scratch.path().join("subuid"), "").unwrap();
        user
    }

    /// A user with a delegated cgroup in every hierarchy.
    pub fn with_cgroups() -> Self {
        let mut user = Self::new();
        let name = format!("sojourn-test-{}", user.uid);
        for hierarchy in hierarchies() {
            let cgroup = hierarchy.join(&name);
            fs::create_dir(&cgroup).unwrap();
            // A cpuset of cgroup v1 is empty at first.
            for set in ["cpuset.cpus", "cpuset.mems"] {
                if !hierarchy.join("cgroup.controllers").exists() && cgroup.join(set).exists() {
                    fs::write(cgroup.join(set), fs::read(hierarchy.join(set)).unwrap()).unwrap();
                }
            }
            chown(&cgroup, Some(user.uid), Some(user.uid)).unwrap();
            for file in ["cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control"] {
                if cgroup.join(file).exists() {
                    chown(cgroup.join(file), Some(user.uid), Some(user.uid)).unwrap();
                }
            }
        }
        user.delegated = Some(name);
        user
    }

    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// First subordinate id.
    pub fn first_lent(&self) -> u32 {
        self.lent
    }

    /// A program run as root that finds this user in the machine's tables.
    pub fn known_to(&self, program: &str) -> Command {
        let script = r#"for table in passwd group subuid subgid; do mount --bind "$1/$table" "/etc/$table" || exit; done
            shift; exec "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "--", "sh", "-c", script, "sh"]);
        command.arg(self.scratch.path()).arg(program);
        command
    }

    /// Home directory; not accessible to other users.
    pub fn home(&self) -> PathBuf {
        self.scratch.path().join("home")
    }

    /// A program run as this user; `exec` makes it the started process.
    pub fn command(&self, program: &Path) -> Command {
        let script = r#"set -e
            scratch=$1 uid=$2 cgroup=$3 from=$4 name=$5
            shift 5
            if [ -n "$cgroup" ]; then
                for hierarchy in /sys/fs/cgroup/*/"$cgroup" /sys/fs/cgroup/"$cgroup"; do
                    [ ! -d "$hierarchy" ] || echo $$ > "$hierarchy/cgroup.procs"
                done
            fi
            for table in passwd group subuid subgid; do mount --bind "$scratch/$table" "/etc/$table"; done
            mount --bind "$from" "$scratch/bin"
            exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all "$scratch/bin/$name" "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "--", "sh", "-c", script, "sh"]);
        command.arg(self.scratch.path()).arg(self.uid.to_string());
        command.arg(self.delegated.as_deref().unwrap_or_default());
        command.arg(program.parent().unwrap()).arg(program.file_name().unwrap());
        let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "SOJOURN_TEST_FULL");
        let kept: Vec<_> = kept.collect();
        command.env_clear().envs(kept).env("HOME", self.home()).env("TMPDIR", self.home());
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Processes of this user and of its subordinate ids.
    pub fn processes(&self) -> Vec<i32> {
        let is_own = |uid: u32| uid == self.uid || (self.lent..self.lent + LENT).contains(&uid);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let field =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let uid = field("Uid:").split_whitespace().next().and_then(|uid| uid.parse().ok());
            // A zombie is left to its parent to reap; it may be orphaned.
            !field("State:").trim().starts_with('Z') && uid.is_some_and(is_own)
        })
        .collect()
    }

    /// Processes of subordinate ids.
    pub fn processes_of_sandboxes(&self) -> usize {
        let is_lent = |uid: u32| (self.lent..self.lent + LENT).contains(&uid);
        self.processes()
            .into_iter()
            .filter(|pid| fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| is_lent(process.uid())))
            .count()
    }

    /// Cgroups of organizations, which contain those of sandboxes, below the delegated one.
    pub fn cgroups_of_sandboxes(&self) -> usize {
        let Some(name) = &self.delegated else { return 0 };
        let entries = |place: PathBuf| fs::read_dir(place).into_iter().flatten().flatten();
        let found = hierarchies().into_iter().flat_map(|place| entries(place.join(name).join("sojourn")));
        found.filter(|entry| entry.path().is_dir()).count()
    }
}

impl Drop for OrdinaryUser {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() >= until {
                break;
            }
            for pid in left {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
            thread::sleep(Duration::from_millis(20));
        }
        for hierarchy in hierarchies() {
            let Some(name) = &self.delegated else { break };
            remove_cgroup(&hierarchy.join(name));
        }
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let entries = fs::read_dir(root).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.join("cgroup.procs").exists()).collect()
}

/// Removes children first; the kernel may hold a cgroup for a moment after its last process.
fn remove_cgroup(place: &Path) {
    for below in fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if below.is_dir() {
            remove_cgroup(&below);
        }
    }
    for _ in 0..100 {
        if fs::remove_dir(place).is_ok() || !place.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Reruns the test of this name as an ordinary user; the second run executes `body`.
pub fn as_ordinary_user(user: impl FnOnce() -> OrdinaryUser, name: &str, body: impl FnOnce()) {
    if !geteuid().is_root() {
        return body();
    }
    let user = user();
    let itself = std::env::current_exe().unwrap();
    let ran = user.command(&itself).args(["--exact", name, "--nocapture"].map(OsStr::new)).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    println!("{said}");
    assert!(ran.status.success(), "the test failed as an ordinary user");
    assert!(said.contains("1 passed"), "no test is called {name}");
    assert_eq!(user.processes_of_sandboxes(), 0, "a process is left");
    assert_eq!(user.cgroups_of_sandboxes(), 0, "a cgroup is left");
}
