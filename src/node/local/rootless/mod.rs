//! Rootless containers: `runc` for a service that runs as an ordinary user.
//!
//! Called by `local` as an engine. The runtime runs as root of a user namespace with the service's
//! subordinate ids (`users`). As with a service that is root, each sandbox has its own user namespace, nested
//! in that one, and its users are no users of the host. CPU and memory limits need cgroups: they are enforced
//! if a cgroup is delegated to the service, otherwise not. Without cgroups, a sandbox is ended, frozen and
//! measured through its processes.

mod processes;
mod users;

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use rustix::process::{Pid, test_kill_process};

pub(super) use users::Users;

use super::{
    bundle::{self, ContainerSpec},
    cgroup::Cgroups,
    engine::Engine,
    layout::{IdRange, Layout},
    rootfs::Base,
    runtime::{Runtime, last_message},
    unavailable, user_namespace,
};
use crate::{
    domain::{OrgId, SandboxId, SessionId},
    sandbox::{Fault, Found, Stats},
};

/// Script that runs as root of the user namespace: it changes the owner of the sandbox's directories to its
/// users, bind-mounts the root file system where they can reach it, and executes the runtime. The control
/// directory belongs to the sandbox; the service has access through its group, which entries of the directory
/// inherit.
const SCRIPT: &str = r#"set -e
root=$1 command=$2 control=$3 output=$4 workspace=$5 home=$6 skills=$7 rootfs=$8 place=$9
shift 9
chown -h "$root:0" "$control"
chmod 2770 "$control"
chown -h "$root:$root" "$output" "$skills"
chown -h "$command:$command" "$workspace" "$home"
mount --bind "$rootfs" "$place"
exec "$@""#;

/// Directories that exist on every machine. The root file system is mounted over the first usable one,
/// visible only to the runtime, because a sandbox's users cannot traverse the service's directories.
const PLACES: [&str; 4] = ["/mnt", "/media", "/srv", "/opt"];

/// An OCI runtime with the subordinate ids that own its containers.
#[derive(Clone, Debug)]
pub(super) struct Rootless {
    runtime: Runtime,
    users: Users,
    cgroups: Option<Cgroups>,
    place: PathBuf,
    layout: Layout,
}

impl Rootless {
    /// # Errors
    /// `Unavailable` with a one-line reason.
    pub(super) fn new(runtime: Runtime, users: Users, layout: Layout) -> Result<Self, Fault> {
        if runtime.is_gvisor {
            let text = "gVisor's runsc needs a service that runs as root; use runc without root";
            return Err(Fault::Unavailable(text.to_owned()));
        }
        let is_free = |place: &Path| place.is_dir() && !layout.is_below(place);
        let place = PLACES.iter().map(Path::new).find(|place| is_free(place)).ok_or_else(|| {
            Fault::Unavailable(format!("none of {} is a directory apart from the data", PLACES.join(", ")))
        })?;
        let cgroups = Cgroups::delegated().inspect_err(|reason| {
            tracing::warn!(
                reason,
                "sandboxes run without root: their CPU and memory are not limited, and environments \
                 that set `cpus` or `memory` are refused; processes, disk, time and output are limited"
            );
        });
        Ok(Self { runtime, users, cgroups: cgroups.ok(), place: place.to_owned(), layout })
    }

    fn organization_of(&self, sandbox: SandboxId) -> Option<OrgId> {
        self.cgroups.as_ref()?.organization_of(sandbox, &self.layout)
    }

    /// Command line that changes the owners of the sandbox's files and then executes the runtime.
    fn words(&self, of: &ContainerSpec<'_>) -> Vec<OsString> {
        let mut words = self.users.words();
        words.extend(["/bin/sh", "-c", SCRIPT, "sh"].map(OsString::from));
        words.extend([of.ids.first, of.ids.command()].map(|id| id.to_string().into()));
        let paths = [
            of.control_dir,
            &of.disk.output,
            &of.disk.workspace,
            &of.disk.home,
            &of.disk.skills,
            &of.base.rootfs,
            &self.place,
        ];
        words.extend(paths.map(|path| path.as_os_str().to_owned()));
        words
    }
}

#[async_trait]
impl Engine for Rootless {
    fn ids(&self, session: SessionId) -> IdRange {
        self.users.ids(session)
    }

    fn users(&self) -> Option<&Users> {
        Some(&self.users)
    }

    fn enforces_size(&self) -> bool {
        self.cgroups.is_some()
    }

    async fn run(&self, sandbox: SandboxId, of: &ContainerSpec<'_>, sandbox_dir: &Path) -> Result<(), Fault> {
        let base = Base { rootfs: self.place.clone(), ..of.base.clone() };
        let link = sandbox_dir.join(user_namespace::LINK);
        let inside = ContainerSpec { base: &base, user_namespace: Some(&link), ..*of };
        let spec = match &self.cgroups {
            Some(cgroups) => {
                let oom_counter = cgroups.make(of.org, sandbox).await;
                let oom_counter =
                    oom_counter.map_err(|error| unavailable("its cgroup cannot be created", &error))?;
                let path = cgroups.path(of.org, sandbox);
                let cgroup = bundle::Cgroup {
                    path: &path,
                    oom_counter: &oom_counter,
                    limits_swap: cgroups.limits_swap,
                    limits_io: cgroups.limits_io,
                };
                bundle::spec(&inside, Some(&cgroup))
            }
            // The runtime fails if the configuration contains limits that it cannot enforce.
            None => bundle::spec(&inside, None).map(|mut spec| {
                if let Some(linux) = spec.linux_mut() {
                    linux.set_resources(None);
                }
                spec
            }),
        };
        spec.and_then(|spec| spec.save(sandbox_dir.join("config.json")))
            .map_err(|error| Fault::Unavailable(format!("its configuration cannot be written: {error}")))?;
        let before = [self.words(of), user_namespace::words(of, &link)].concat();
        self.runtime.run(sandbox, sandbox_dir, &before).await
    }

    async fn ended(&self, _: SandboxId, sandbox_dir: &Path) -> Option<String> {
        let pid = fs::read_to_string(sandbox_dir.join("pid")).ok()?;
        let pid = Pid::from_raw(pid.trim().parse().ok()?)?;
        test_kill_process(pid).is_err().then(|| last_message(sandbox_dir))
    }

    async fn freeze(&self, sandbox: SandboxId, freeze: bool) -> Result<(), Fault> {
        let org = self.organization_of(sandbox);
        match self.cgroups.as_ref().and_then(|cgroups| cgroups.freezer(org, sandbox)) {
            Some(freezer) if freezer.is_frozen() == freeze => Ok(()),
            Some(freezer) => freezer.set(freeze).await,
            None => processes::freeze(&self.users, sandbox, &self.layout.sandbox(sandbox), freeze).await,
        }
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        Ok(match &self.cgroups {
            Some(cgroups) => cgroups.stats(self.organization_of(sandbox), sandbox),
            None => processes::stats(&self.users, sandbox, &self.layout.sandbox(sandbox)),
        })
    }

    /// Removes without the runtime: outside of the namespace in which the sandbox was created, the runtime
    /// has no permission to signal its processes, and after their end only its state is left.
    async fn remove(&self, sandbox: SandboxId, _: &Path) -> Result<(), Fault> {
        let org = self.organization_of(sandbox);
        if let Some(cgroups) = &self.cgroups {
            cgroups.kill(org, sandbox);
        }
        processes::end(&self.users, sandbox).await?;
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove(org, sandbox).await?;
        }
        self.runtime
            .remove_state(sandbox)
            .map_err(|error: io::Error| unavailable("its state cannot be removed", &error))
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        Ok(Vec::new())
    }
}
