//! Containers made by an OCI runtime: `runc`, gVisor's `runsc`, and what is like them.
//!
//! Called by `local` as an engine where the service is root. The runtime makes and deletes; freezing, counting
//! and the last word on whether a sandbox is over are the cgroups'.

use std::{fs, io, path::Path};

use async_trait::async_trait;
use rustix::process::{Pid, test_kill_process};

use super::{
    bundle::{self, Ingredients},
    cgroup::Cgroups,
    engine::Engine,
    layout::IdRange,
    runtime::{Runtime, last_words},
    unavailable,
};
use crate::{
    domain::{SandboxId, SessionId},
    sandbox::{Fault, Found, Stats},
};

/// An OCI runtime and the cgroups of this machine.
#[derive(Clone, Debug)]
pub struct Oci {
    runtime: Runtime,
    cgroups: Cgroups,
}

impl Oci {
    /// # Errors
    /// `Unavailable` with one line that says what is missing.
    pub fn new(runtime: Runtime) -> Result<Self, Fault> {
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !maps_every_range(&uid_map) {
            let text = "the user ids 1879048192 to 2147287039 do not exist in this user namespace";
            return Err(Fault::Unavailable(text.to_owned()));
        }
        Ok(Self { runtime, cgroups: Cgroups::find()? })
    }
}

#[async_trait]
impl Engine for Oci {
    /// gVisor's part that opens files cannot pass the host's directories as another user
    /// than root; its sandboxes are kept in by a kernel of their own.
    fn ids(&self, session: SessionId) -> IdRange {
        if self.runtime.is_gvisor { IdRange::HOST } else { IdRange::of(session) }
    }

    fn is_gvisor(&self) -> bool {
        self.runtime.is_gvisor
    }

    async fn run(&self, sandbox: SandboxId, of: &Ingredients<'_>, sandbox_dir: &Path) -> Result<(), Fault> {
        let oom_counter = self.cgroups.make(sandbox);
        let oom_counter = oom_counter.map_err(|error| unavailable("its cgroup cannot be made", &error))?;
        let cgroup = bundle::Cgroup {
            path: &self.cgroups.path(sandbox),
            oom_counter: &oom_counter,
            limits_swap: self.cgroups.limits_swap,
        };
        bundle::spec(of, Some(&cgroup))
            .and_then(|configuration| configuration.save(sandbox_dir.join("config.json")))
            .map_err(|error| Fault::Unavailable(format!("its configuration cannot be written: {error}")))?;
        self.runtime.run(sandbox, sandbox_dir, &[]).await
    }

    async fn ended(&self, _: SandboxId, sandbox_dir: &Path) -> Option<String> {
        let pid = fs::read_to_string(sandbox_dir.join("pid")).ok()?;
        let pid = Pid::from_raw(pid.trim().parse().ok()?)?;
        test_kill_process(pid).is_err().then(|| last_words(sandbox_dir))
    }

    async fn freeze(&self, sandbox: SandboxId, freeze: bool) -> Result<(), Fault> {
        match self.cgroups.freezer(sandbox) {
            Some(freezer) if freezer.is_frozen() == freeze => Ok(()),
            Some(freezer) => freezer.set(freeze).await,
            // One that cannot be frozen is not.
            None if !freeze => Ok(()),
            None => Err(Fault::Refused("there is no cgroup here that can be frozen".to_owned())),
        }
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        Ok(self.cgroups.stats(sandbox))
    }

    async fn remove(&self, sandbox: SandboxId, sandbox_dir: &Path) -> Result<(), Fault> {
        // Dead first: to end a live one itself the runtime takes 100 ms steps. And
        // whatever it says, the cgroup is the last word on the processes.
        self.cgroups.kill(sandbox);
        let deleted = self.runtime.delete(sandbox, sandbox_dir).await;
        self.cgroups.remove(sandbox).await?;
        if self.runtime.knows(sandbox) {
            deleted?;
            self.runtime
                .forget(sandbox)
                .map_err(|error: io::Error| unavailable("its state cannot be removed", &error))?;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        Ok(Vec::new())
    }
}

/// Whether a `uid_map` (first inside, first outside, count) has the sandboxes' ids.
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
