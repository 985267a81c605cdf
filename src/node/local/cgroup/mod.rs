//! cgroups of sandboxes: paths, statistics, removal.
//!
//! Called by `local`. The runtime creates the cgroups and adds processes to them. This module finds the
//! hierarchies (v1, v2 or both), creates the memory cgroup in advance so that its counters can be mounted in
//! the sandbox, and decides whether a sandbox is dead: a process cannot leave its cgroup. The cgroup of a
//! sandbox is in that of its organization (`organization`).

mod limits;
mod organization;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::freezer::Freezer;
use crate::{
    base::limit,
    domain::{OrgId, SandboxId},
    sandbox::{Fault, Stats},
};

/// Parent cgroup of those of all organizations, below each hierarchy's root or the delegated cgroup.
const PARENT: &str = "sojourn";
/// Sibling of `PARENT` for the service's own processes, where they must be moved.
const SERVICE: &str = "sojourn-service";
/// Sibling of `PARENT` for watchers: a service manager kills the processes in the cgroup of the service.
const WATCHERS: &str = "sojourn-watchers";
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// cgroup hierarchies of this machine.
#[derive(Clone, Debug)]
pub(super) struct Cgroups {
    /// Every mounted hierarchy, including named ones and those without controllers, joined with `base`.
    mounts: Vec<PathBuf>,
    memory: PathBuf,
    /// Parent of `PARENT`: the root, or a delegated cgroup.
    base: PathBuf,
    unified: bool,
    /// Whether the kernel accounts for swap and can limit it.
    pub limits_swap: bool,
    /// Whether reads and writes of a disk can be limited.
    pub limits_io: bool,
}

/// A cgroup mount in mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    path: PathBuf,
    /// Controllers of a v1 hierarchy; `None` for v2.
    v1_controllers: Option<Vec<String>>,
}

impl Cgroups {
    /// Finds the hierarchies and creates the parent cgroup of all sandboxes.
    ///
    /// # Errors
    /// `Unavailable` when CPU, memory or processes cannot be limited on this machine.
    pub(super) fn find() -> Result<Self, Fault> {
        let unusable = |why: String| Fault::Unavailable(format!("cgroups cannot be used here: {why}"));
        let cgroups = Self::mounted().map_err(unusable)?;
        cgroups
            .make_parent()
            .map_err(|error| unusable(format!("{error}; limits need a writable hierarchy")))?;
        Ok(cgroups.detect_limits())
    }

    /// Finds the hierarchies and uses the service's own cgroup as the base.
    ///
    /// It must be delegated to the service's user, as systemd does with `Delegate=yes`.
    ///
    /// # Errors
    /// Reason why sandboxes can have no cgroups, for the log.
    pub(super) fn delegated() -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let cgroups = Self::mounted()?;
        let own = own_of(&own, cgroups.unified).ok_or("the service has no cgroup of its own")?;
        let cgroups = cgroups.below(own);
        let place = cgroups.memory.display();
        let made = cgroups.make_parent().and_then(|()| cgroups.make_parents());
        made.map_err(|error| format!("no cgroup is delegated to the service's user: {place}: {error}"))?;
        Ok(cgroups.detect_limits())
    }

    fn mounted() -> Result<Self, String> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        Self::among(&parse(&mountinfo))
    }

    /// Rebases all hierarchies onto this cgroup.
    fn below(self, own: &Path) -> Self {
        // A restarted service may run in the cgroup that an earlier process moved itself to.
        let base = if own.ends_with(SERVICE) { own.parent().unwrap_or(own) } else { own };
        let inside = |mount: &Path| mount.join(base.strip_prefix("/").unwrap_or(base));
        Self {
            mounts: self.mounts.iter().map(|mount| inside(mount)).collect(),
            memory: inside(&self.memory),
            base: base.to_owned(),
            ..self
        }
    }

    /// Creates the parent cgroup in all hierarchies, because the runtime creates a sandbox's cgroup in each.
    fn make_parents(&self) -> io::Result<()> {
        let with_controllers = |mount: &&PathBuf| self.unified || !mount.join("cgroup.freeze").exists();
        self.mounts.iter().filter(with_controllers).try_for_each(|mount| make_dir(&mount.join(PARENT)))?;
        self.lower_weight();
        Ok(())
    }

    /// Gives all sandboxes together less weight than the services of the machine: the weights below compare
    /// organizations with each other only, and sandboxes with others of their organization.
    fn lower_weight(&self) {
        self.set_weight(Path::new(PARENT), limit::SANDBOX_CPU_SHARES, limit::SANDBOXES_CPU_WEIGHT);
    }

    /// Sets the weight of a cgroup for processors: `shares` on v1, `weight` on v2. A kernel without the file has
    /// none.
    fn set_weight(&self, cgroup: &Path, shares: u64, weight: u64) {
        for mount in &self.mounts {
            let directory = mount.join(cgroup);
            // On v1 the runtime would create it later.
            let has_shares = directory.parent().is_some_and(|above| above.join("cpu.shares").exists());
            let made = if has_shares { make_dir(&directory) } else { Ok(()) };
            let of_version = [("cpu.shares", shares), ("cpu.weight", weight)];
            let files = of_version.map(|(file, value)| (directory.join(file), value));
            let written = files
                .iter()
                .filter(|(file, _)| file.exists())
                .try_for_each(|(file, value)| fs::write(file, value.to_string()));
            if let Err(error) = made.and(written) {
                tracing::warn!(cgroup = %directory.display(), %error, "the weight of sandboxes could not be set");
            }
        }
    }

    fn among(mounted: &[Mounted]) -> Result<Self, String> {
        let of_v1 = |controller: &str| {
            let has = |mount: &&Mounted| {
                mount.v1_controllers.as_ref().is_some_and(|names| names.iter().any(|name| name == controller))
            };
            mounted.iter().find(has).map(|mount| mount.path.clone())
        };
        let mounts = mounted.iter().map(|mount| mount.path.clone()).collect();
        if let Some(memory) = of_v1("memory") {
            if let Some(missing) = CONTROLLERS.iter().find(|controller| of_v1(controller).is_none()) {
                return Err(format!("the controller {missing} is not mounted"));
            }
            return Ok(Self {
                mounts,
                memory,
                base: "/".into(),
                unified: false,
                limits_swap: false,
                limits_io: false,
            });
        }
        let unified = mounted.iter().find(|mount| mount.v1_controllers.is_none());
        let memory = unified.ok_or_else(|| "none is mounted".to_owned())?.path.clone();
        Ok(Self { mounts, memory, base: "/".into(), unified: true, limits_swap: false, limits_io: false })
    }

    fn make_parent(&self) -> io::Result<()> {
        if self.unified {
            self.delegate()?;
        }
        make_dir(&self.memory.join(PARENT))?;
        self.lower_weight();
        Ok(())
    }

    /// On v2, a controller is available to a sandbox only if every level above enables it for its children.
    fn delegate(&self) -> io::Result<()> {
        if pass_on(&self.memory).is_err() {
            // In a container, the hierarchy's root contains the container's own processes, as a delegated
            // cgroup contains the service. A cgroup with processes cannot enable controllers for its
            // children, so the processes move to a sibling first.
            let own = self.memory.join(SERVICE);
            make_dir(&own)?;
            for pid in pids(&self.memory) {
                fs::write(own.join("cgroup.procs"), pid.to_string())?;
            }
            pass_on(&self.memory)?;
        }
        let parent = self.memory.join(PARENT);
        make_dir(&parent)?;
        pass_on(&parent)
    }

    /// Moves this process to the cgroup of watchers in every hierarchy that allows it.
    pub(super) fn move_away(&self) {
        for mount in &self.mounts {
            let place = mount.join(WATCHERS);
            // A hierarchy with requirements of its own (cpuset) refuses; the service manager uses another one.
            let moved = make_dir(&place).and_then(|()| fs::write(place.join("cgroup.procs"), "0"));
            if let Err(error) = moved {
                tracing::debug!(%error, place = %place.display(), "the watcher stays in the cgroup of its service");
            }
        }
    }

    /// Path of a sandbox's cgroup below each hierarchy's root, for the runtime.
    pub(super) fn path(&self, org: OrgId, sandbox: SandboxId) -> PathBuf {
        self.base.join(cgroup_of(org, sandbox))
    }

    /// Creates the sandbox's memory cgroup. Returns the path of its event counters, in which the line
    /// `oom_kill N` counts the processes killed for memory.
    pub(super) async fn make(&self, org: OrgId, sandbox: SandboxId) -> io::Result<PathBuf> {
        let directory = self.memory.join(cgroup_of(org, sandbox));
        // The runtime creates the others later. While this one exists, no process removes those of the
        // organization.
        let _lock = self.lock().await;
        self.make_organization(org)?;
        make_dir(&directory)?;
        Ok(directory.join(if self.unified { "memory.events" } else { "memory.oom_control" }))
    }

    /// Checks for the files that cgroups have where swap, and reads and writes, can be limited.
    fn detect_limits(mut self) -> Self {
        let name = if self.unified { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
        self.limits_swap = self.memory.join(PARENT).join(name).exists();
        self.limits_io = if self.unified {
            let available = fs::read_to_string(self.memory.join(PARENT).join("cgroup.controllers"));
            available.is_ok_and(|names| names.split_whitespace().any(|name| name == "io"))
        } else {
            self.mounts.iter().any(|mount| mount.join("blkio.throttle.read_bps_device").exists())
        };
        self
    }

    /// Kills all processes in a sandbox's cgroups, without waiting for their end.
    pub(super) fn kill(&self, org: Option<OrgId>, sandbox: SandboxId) {
        for directory in self.directories(org, sandbox) {
            kill_tree(&directory);
        }
    }

    /// Freezer of the sandbox's processes, if a hierarchy has one.
    pub(super) fn freezer(&self, org: Option<OrgId>, sandbox: SandboxId) -> Option<Freezer> {
        Freezer::among(&self.directories(org, sandbox))
    }

    /// Resource usage of a sandbox; a value that no hierarchy counts is 0.
    pub(super) fn stats(&self, org: Option<OrgId>, sandbox: SandboxId) -> Stats {
        let directories = self.directories(org, sandbox);
        let number = |name: &str| {
            let counts =
                |directory: &PathBuf| fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok();
            directories.iter().find_map(counts)
        };
        let micros = || {
            let line = |directory: &PathBuf| {
                let stat = fs::read_to_string(directory.join("cpu.stat")).ok()?;
                stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok())
            };
            directories.iter().find_map(line)
        };
        let cpu = match number("cpuacct.usage") {
            Some(nanos) => Duration::from_nanos(nanos),
            None => Duration::from_micros(micros().unwrap_or(0)),
        };
        Stats {
            memory_bytes: number("memory.usage_in_bytes").or_else(|| number("memory.current")).unwrap_or(0),
            processes: number("pids.current").unwrap_or(0),
            cpu,
            is_frozen: Freezer::among(&directories).is_some_and(|freezer| freezer.is_frozen()),
        }
    }

    /// Existing cgroups of a sandbox.
    fn directories(&self, org: Option<OrgId>, sandbox: SandboxId) -> Vec<PathBuf> {
        self.possible(org, sandbox).into_iter().filter(|path| path.exists()).collect()
    }

    /// Kills all remaining processes in a sandbox's cgroups and removes the cgroups, and with the last sandbox
    /// those of its organization.
    ///
    /// # Errors
    /// `Unavailable` when a process does not end in time; the sandbox then still exists.
    pub(super) async fn remove(&self, org: Option<OrgId>, sandbox: SandboxId) -> Result<(), Fault> {
        let until = Instant::now() + limit::SANDBOX_END_TIMEOUT;
        for directory in self.possible(org, sandbox) {
            loop {
                kill_tree(&directory);
                if remove_tree(&directory).is_ok() {
                    break;
                }
                if Instant::now() >= until {
                    let text = format!("processes of {sandbox} did not end in time");
                    return Err(Fault::Unavailable(text));
                }
                tokio::time::sleep(limit::SANDBOX_START_POLL.0).await;
            }
        }
        if let Some(org) = org {
            self.remove_organization(org).await;
        }
        Ok(())
    }
}

/// A sandbox's cgroup, relative to a hierarchy or to the delegated cgroup.
fn cgroup_of(org: OrgId, sandbox: SandboxId) -> PathBuf {
    Path::new(PARENT).join(org.to_string()).join(sandbox.to_string())
}

/// Enables the controllers for the children of a cgroup of v2.
fn pass_on(directory: &Path) -> io::Result<()> {
    let file = directory.join("cgroup.subtree_control");
    // Not every kernel and every delegation has it; then reads and writes have no limit.
    let _ = fs::write(&file, "+io");
    fs::write(&file, CONTROLLERS.map(|controller| format!("+{controller}")).join(" "))
}

/// A cgroup and its descendants, deepest last.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(level) = found.get(next).cloned() {
        next += 1;
        let entries = fs::read_dir(level).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    found
}

fn kill_tree(directory: &Path) {
    for pid in tree(directory).iter().flat_map(|level| pids(level)) {
        // The process may have ended meanwhile; the caller retries until the cgroup can be removed.
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
    }
    for level in tree(directory) {
        // In a v1 freezer, a killed process ends only when it is thawed.
        let state = level.join("freezer.state");
        if state.exists() {
            let _ = fs::write(state, "THAWED");
        }
    }
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    for level in tree(directory).iter().rev() {
        match fs::remove_dir(level) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn pids(directory: &Path) -> Vec<i32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The service's own cgroup in the hierarchy that limits memory, from `/proc/self/cgroup` (cgroups(7):
/// `number:controllers:path`).
fn own_of(cgroup: &str, unified: bool) -> Option<&Path> {
    let of_memory = |line: &&str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next().unwrap_or_default();
        if unified { controllers.is_empty() } else { controllers.split(',').any(|name| name == "memory") }
    };
    let line = cgroup.lines().find(of_memory)?;
    line.splitn(3, ':').nth(2).map(Path::new)
}

/// The cgroup mounts in a mountinfo (proc(5): `id parent dev root point options tags - type source options`).
fn parse(mountinfo: &str) -> Vec<Mounted> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let path = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let v1_controllers = match after.next()? {
            "cgroup" => Some(after.nth(1)?.split(',').map(str::to_owned).collect()),
            "cgroup2" => None,
            _ => return None,
        };
        Some(Mounted { path, v1_controllers })
    };
    mountinfo.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
34 30 0:30 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
38 30 0:34 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
39 30 0:35 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
40 30 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn controllers_of_v1_win_over_a_v2_mount_without_any() {
        let cgroups = Cgroups::among(&parse(HYBRID)).unwrap();
        assert_eq!(cgroups.memory, Path::new("/sys/fs/cgroup/memory"));
        assert!(!cgroups.unified);
        assert_eq!(cgroups.mounts.len(), 5);
    }

    #[test]
    fn pure_v2_is_found() {
        let mounted = parse("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        let cgroups = Cgroups::among(&mounted).unwrap();
        assert!(cgroups.unified && cgroups.memory == Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn the_services_own_cgroup_is_the_delegated_one() {
        let hybrid = "4:memory:/of/memory\n3:cpu,cpuacct:/of/cpu\n1:name=systemd:/x\n0::/of/v2\n";
        assert_eq!(own_of(hybrid, false), Some(Path::new("/of/memory")));
        assert_eq!(own_of(hybrid, true), Some(Path::new("/of/v2")));
        assert_eq!(own_of("", true), None);
        let cgroups = |own: &str| Cgroups::among(&parse(HYBRID)).unwrap().below(Path::new(own));
        let org = OrgId::from_uuid(uuid::Uuid::from_u128(2));
        let sandbox = SandboxId::from_uuid(uuid::Uuid::from_u128(1));
        for own in ["/slice/unit", "/slice/unit/sojourn-service"] {
            assert_eq!(cgroups(own).memory, Path::new("/sys/fs/cgroup/memory/slice/unit"));
            let path = Path::new("/slice/unit/sojourn").join(org.to_string()).join(sandbox.to_string());
            assert_eq!(cgroups(own).path(org, sandbox), path);
        }
    }

    #[test]
    fn on_v2_every_level_above_the_sandboxes_passes_the_controllers_on() {
        let root = tempfile::tempdir().unwrap();
        let mounted = [Mounted { path: root.path().to_owned(), v1_controllers: None }];
        let cgroups = Cgroups::among(&mounted).unwrap();
        cgroups.make_parent().unwrap();
        for level in [root.path(), &root.path().join(PARENT)] {
            assert_eq!(
                fs::read_to_string(level.join("cgroup.subtree_control")).unwrap(),
                "+cpu +memory +pids"
            );
        }
    }

    #[test]
    fn all_sandboxes_together_have_less_weight_than_a_service() {
        let root = tempfile::tempdir().unwrap();
        let (v1, v2) = (root.path().join("cpu"), root.path().join("unified"));
        for (directory, file) in
            [(&v1, "cpu.shares"), (&v1.join(PARENT), "cpu.shares"), (&v2.join(PARENT), "cpu.weight")]
        {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join(file), "").unwrap();
        }
        let mounted = [&v1, &v2].map(|path| Mounted { path: path.clone(), v1_controllers: None });
        Cgroups::among(&mounted).unwrap().lower_weight();
        assert_eq!(fs::read_to_string(v1.join(PARENT).join("cpu.shares")).unwrap(), "256");
        assert_eq!(fs::read_to_string(v2.join(PARENT).join("cpu.weight")).unwrap(), "25");
    }

    #[test]
    fn a_missing_controller_is_named() {
        assert_eq!(Cgroups::among(&[]).unwrap_err(), "none is mounted");
        let without_pids: String =
            HYBRID.lines().filter(|line| !line.contains("pids")).collect::<Vec<_>>().join("\n");
        assert_eq!(Cgroups::among(&parse(&without_pids)).unwrap_err(), "the controller pids is not mounted");
    }
}
