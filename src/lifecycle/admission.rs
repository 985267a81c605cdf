//! Admission of a new sandbox: capacity on the node and in the organization's share, or a bounded wait for it.
//!
//! Called by `session` before a sandbox is created. The wait is in the log with its reason and the position in the
//! queue.

use std::time::{Duration, Instant};

use super::{
    Error,
    session::{Place, SandboxSession},
};
use crate::{
    base::limit::{SANDBOX_WAIT_LOG_INTERVAL, SANDBOX_WAIT_POLL},
    domain::{Body, SandboxId, environment::Size, exit::PreparationFailure},
    sandbox::Capabilities,
    store::{
        admission::{Admission, OrganizationMaxima, Shortage},
        sandbox::NewSandbox,
    },
};

/// Limits of admission, and how long a session waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub organization: OrganizationMaxima,
    /// Maximum size of one sandbox, also where its environment was stored under a higher maximum.
    pub sandbox: Size,
    pub wait: Duration,
    /// Whether sandboxes of several organizations may use the image `host` without a kernel of their own.
    pub allows_shared_host: bool,
}

/// Error if several organizations would share the kernel and the programs of the machine.
const SHARED_HOST: &str = "several organizations would share the kernel and the programs of this machine: set \
    SOJOURN_SANDBOX_RUNTIME=runsc or SOJOURN_SANDBOX_IMAGE=debian, or accept it with SOJOURN_ALLOW_SHARED_HOST=on";

impl SandboxSession {
    /// Inserts the row of a sandbox once there is capacity for it.
    ///
    /// # Errors
    /// `PreparationFailure` when there is none in time, or never will be.
    pub(super) async fn admit(&self, new: &NewSandbox, place: Place) -> Result<(), Error> {
        let (limits, began) = (&self.sandboxes.limits, Instant::now());
        let mut told: Option<(Shortage, Instant)> = None;
        let waits = place == Place::InQueue;
        loop {
            let store = &self.sandboxes.store;
            let (shortage, position) =
                match store.admit_sandbox(new, self.fence.epoch, &limits.organization, waits).await? {
                    Admission::Admitted => break,
                    Admission::Stale => return Err(Error::Stale),
                    Admission::TooLarge(shortage) => return Err(too_large(shortage, new.size)),
                    Admission::Waiting(shortage, position) => (shortage, position),
                };
            if began.elapsed() >= limits.wait {
                store.end_sandbox_wait(new.org, new.session).await?;
                return Err(not_admitted(format!(
                    "no capacity for it within {} s: {}",
                    limits.wait.as_secs(),
                    told_of(shortage)
                )));
            }
            let is_news = told
                .is_none_or(|(before, at)| before != shortage || at.elapsed() >= SANDBOX_WAIT_LOG_INTERVAL);
            if is_news {
                self.tell_wait(new.sandbox, shortage, position).await?;
                told = Some((shortage, Instant::now()));
            }
            tokio::time::sleep(SANDBOX_WAIT_POLL).await;
        }
        if told.is_some() {
            self.sandboxes.store.end_sandbox_wait(new.org, new.session).await?;
            metrics::histogram!("sojourn_sandbox_wait_seconds").record(began.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Refuses the kernel and the programs of this machine to sandboxes of more than one organization, unless the operator
    /// allows it.
    pub(super) async fn check_isolation(&self, capabilities: Capabilities) -> Result<(), Error> {
        let is_shared = self.spec.rootfs.is_host() && !capabilities.has_own_kernel;
        if self.sandboxes.limits.allows_shared_host
            || !is_shared
            || !self.sandboxes.store.has_many_orgs().await?
        {
            return Ok(());
        }
        Err(not_admitted(SHARED_HOST.to_owned()))
    }

    async fn tell_wait(&self, id: SandboxId, shortage: Shortage, position: u32) -> Result<(), Error> {
        let shortage = shortage.word().to_owned();
        self.record(vec![Body::SandboxWaiting { sandbox_id: id, shortage, queue_position: position }]).await
    }
}

/// The turn ends, and the next message tries again.
fn not_admitted(reason: String) -> Error {
    Error::PreparationFailure(PreparationFailure::NotAdmitted, reason)
}

/// The reason in the error of a session.
fn told_of(shortage: Shortage) -> &'static str {
    match shortage {
        Shortage::Queue => "other sessions wait before it",
        Shortage::NodeCpu => "the CPUs of the node are reserved for other sandboxes",
        Shortage::NodeMemory => "the memory of the node is reserved for other sandboxes",
        Shortage::NodePids => "the processes of the node are reserved for other sandboxes",
        Shortage::NodeDisk => "the disk of the node is reserved for other sandboxes",
        Shortage::NodeDiskLow => "the disk of the node is nearly full",
        Shortage::OrganizationSandboxes => "the organization has as many sandboxes as it may",
        Shortage::OrganizationMemory => "the sandboxes of the organization have as much memory as they may",
        Shortage::OrganizationCheckpoints => {
            "the checkpoints of the organization take as much as they may: archive or delete sessions"
        }
    }
}

fn too_large(shortage: Shortage, size: Size) -> Error {
    let Size { cpu_millis, memory_bytes, pids, disk_bytes } = size;
    let wanted = match shortage {
        Shortage::NodeCpu => format!("{} CPUs", f64::from(cpu_millis) / 1_000.0),
        Shortage::NodePids => format!("{pids} processes"),
        Shortage::NodeDisk => format!("{} MiB of disk", disk_bytes >> 20),
        _ => format!("{} MiB of memory", memory_bytes >> 20),
    };
    not_admitted(format!(
        "the environment asks for {wanted}, and the node has less for all sandboxes together"
    ))
}
