//! Containers created by an OCI runtime: `runc`, gVisor's `runsc`, and compatible ones.
//!
//! Called by `local` as an engine where the service is root. The runtime creates and deletes containers.
//! Freezing, statistics and the check whether a sandbox has ended use its cgroups.

use std::{ffi::OsString, fs, io, path::Path};

use async_trait::async_trait;
use oci_spec::runtime::{PosixRlimitType, Spec};
use rustix::process::{Pid, test_kill_process};

use super::{
    bundle::{self, ContainerSpec},
    cgroup::Cgroups,
    engine::Engine,
    layout::{IdRange, Layout},
    runtime::{Runtime, last_message},
    unavailable, user_namespace,
};
use crate::{
    domain::{OrgId, SandboxId, SessionId},
    sandbox::{Fault, Found, Stats},
};

/// An OCI runtime and the cgroups of this machine.
#[derive(Clone, Debug)]
pub(super) struct Oci {
    runtime: Runtime,
    cgroups: Cgroups,
    layout: Layout,
}

impl Oci {
    /// # Errors
    /// `Unavailable` with a one-line reason.
    pub(super) fn new(runtime: Runtime, layout: Layout) -> Result<Self, Fault> {
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !maps_every_range(&uid_map) {
            let text = "the user ids 1879048192 to 2147287039 are not mapped in this user namespace";
            return Err(Fault::Unavailable(text.to_owned()));
        }
        Ok(Self { runtime, cgroups: Cgroups::find()?, layout })
    }

    fn organization_of(&self, sandbox: SandboxId) -> Option<OrgId> {
        self.cgroups.organization_of(sandbox, &self.layout)
    }
}

#[async_trait]
impl Engine for Oci {
    /// gVisor's file proxy (gofer) can traverse the host's directories only as root; gVisor's own kernel
    /// isolates its sandboxes.
    fn ids(&self, session: SessionId) -> IdRange {
        if self.runtime.is_gvisor { IdRange::HOST } else { IdRange::of(session) }
    }

    fn is_gvisor(&self) -> bool {
        self.runtime.is_gvisor
    }

    async fn run(&self, sandbox: SandboxId, of: &ContainerSpec<'_>, sandbox_dir: &Path) -> Result<(), Fault> {
        let oom_counter = self.cgroups.make(of.org, sandbox).await;
        let oom_counter = oom_counter.map_err(|error| unavailable("its cgroup cannot be created", &error))?;
        let cgroup = bundle::Cgroup {
            path: &self.cgroups.path(of.org, sandbox),
            oom_counter: &oom_counter,
            limits_swap: self.cgroups.limits_swap,
            limits_io: self.cgroups.limits_io,
        };
        let link = sandbox_dir.join(user_namespace::LINK);
        let of = ContainerSpec { user_namespace: Some(&link), ..*of };
        let written = bundle::spec(&of, Some(&cgroup)).and_then(|mut spec| {
            let before = if of.ids == IdRange::HOST { Vec::new() } else { before(&of, &link, &mut spec) };
            let resources = spec.linux().as_ref().and_then(|linux| linux.resources().clone());
            spec.save(sandbox_dir.join("config.json")).map(|()| (before, resources))
        });
        let (before, resources) = written
            .map_err(|error| Fault::Unavailable(format!("its configuration cannot be written: {error}")))?;
        if let Some(resources) = resources {
            let limited = self.cgroups.limit(of.org, sandbox, &resources);
            limited.map_err(|error| unavailable("the limits of its cgroup cannot be set", &error))?;
        }
        self.runtime.run(sandbox, sandbox_dir, &before).await
    }

    async fn ended(&self, _: SandboxId, sandbox_dir: &Path) -> Option<String> {
        let pid = fs::read_to_string(sandbox_dir.join("pid")).ok()?;
        let pid = Pid::from_raw(pid.trim().parse().ok()?)?;
        test_kill_process(pid).is_err().then(|| last_message(sandbox_dir))
    }

    fn outlive_service(&self) {
        self.cgroups.move_away();
    }

    async fn freeze(&self, sandbox: SandboxId, freeze: bool) -> Result<(), Fault> {
        match self.cgroups.freezer(self.organization_of(sandbox), sandbox) {
            Some(freezer) if freezer.is_frozen() == freeze => Ok(()),
            Some(freezer) => freezer.set(freeze).await,
            // Without a freezer, the sandbox cannot be frozen.
            None if !freeze => Ok(()),
            None => Err(Fault::Refused("the sandbox has no cgroup that can be frozen".to_owned())),
        }
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        Ok(self.cgroups.stats(self.organization_of(sandbox), sandbox))
    }

    async fn remove(&self, sandbox: SandboxId, sandbox_dir: &Path) -> Result<(), Fault> {
        // Before the runtime removes the cgroups, by which that of an installation is found.
        let org = self.organization_of(sandbox);
        // Kill first: the runtime ends a live container in steps of 100 ms. Whatever the runtime reports, the
        // cgroup decides whether processes are left.
        self.cgroups.kill(org, sandbox);
        let deleted = self.runtime.delete(sandbox, sandbox_dir).await;
        self.cgroups.remove(org, sandbox).await?;
        if self.runtime.knows(sandbox) {
            deleted?;
            self.runtime
                .remove_state(sandbox)
                .map_err(|error: io::Error| unavailable("its state cannot be removed", &error))?;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        Ok(Vec::new())
    }
}

/// Program and arguments in front of the runtime's command line: one makes the container's user namespace, and
/// `prlimit` sets the resource limits of the configuration, which the container inherits. The runtime could set
/// them in a namespace that root does not own only with the capability SYS_RESOURCE.
fn before(of: &ContainerSpec<'_>, link: &Path, spec: &mut Spec) -> Vec<OsString> {
    let mut words = user_namespace::words(of, link);
    let rlimits = spec.process_mut().as_mut().and_then(|process| {
        let rlimits = process.rlimits().clone();
        process.set_rlimits(None);
        rlimits
    });
    words.push("prlimit".into());
    for limit in rlimits.into_iter().flatten() {
        let name = match limit.typ() {
            PosixRlimitType::RlimitNproc => "nproc",
            PosixRlimitType::RlimitNofile => "nofile",
            PosixRlimitType::RlimitCore => "core",
            other => unreachable!("no configuration sets {other:?}"),
        };
        words.push(format!("--{name}={}:{}", limit.soft(), limit.hard()).into());
    }
    words
}

/// Whether a `uid_map` contains the sandboxes' ids. Fields: first inside, first outside, count.
pub(super) fn maps_every_range(uid_map: &str) -> bool {
    uid_map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (fields.next(), fields.next(), fields.next());
        match (first, count) {
            (Some(first), Some(count)) => {
                first <= u64::from(IdRange::FIRST) && u64::from(IdRange::END) <= first + count
            }
            _ => false,
        }
    })
}
