//! Admission of a new sandbox: capacity on a node and in the organization's share, or a bounded wait for it.
//!
//! Called by `creation` before a sandbox is created. A session waits without a worker: its job is released, and whoever
//! claims it next asks again. The wait is in the log with its reason and the position in the queue.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    Error, Sandboxes,
    nodes::{NODE_SILENT, Needs, Placements, Placing, Usable},
    session::SandboxSession,
};
use crate::{
    base::limit::{SANDBOX_WAIT_POLL, SANDBOX_WAIT_POLL_STEP},
    domain::{Body, OrgId, SandboxId, environment::Size},
    sandbox::Sandbox,
    store::{
        self,
        admission::{Admission, OrganizationMaxima, Shortage, Wait},
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

enum Asked {
    Admitted(Arc<dyn Sandbox>, Duration),
    Waiting(Wait),
}

impl Sandboxes {
    /// Returns why callers of an organization can take no checkpoint; `None` if they can.
    pub(crate) async fn full_of_checkpoints(&self, org: OrgId) -> store::Result<Option<&'static str>> {
        let Some(max) = self.limits.organization.checkpoint_bytes else { return Ok(None) };
        let used = self.store.checkpoint_bytes(org).await?;
        Ok((used >= max).then(|| told_of(Shortage::OrganizationCheckpoints)))
    }
}

impl SandboxSession {
    /// Inserts the row of a sandbox if there is capacity for it on a node. Returns the sandboxes of that node, which is
    /// then the one of `new`.
    ///
    /// # Errors
    /// `NotYet` while it waits: the job is released meanwhile. `PreparationFailure` when the time of the wait is over, or
    /// there will never be capacity.
    pub(super) async fn admit(
        &self,
        new: &mut NewSandbox,
        placing: &Placing,
    ) -> Result<Arc<dyn Sandbox>, Error> {
        let began = Instant::now();
        let Sandboxes { store, limits, .. } = &self.sandboxes;
        loop {
            let wait = match self.ask_nodes(new, placing).await? {
                Asked::Admitted(sandbox, waited) => {
                    if !waited.is_zero() {
                        metrics::histogram!("sojourn_sandbox_wait_seconds").record(waited.as_secs_f64());
                    }
                    return Ok(sandbox);
                }
                Asked::Waiting(wait) => wait,
            };
            if wait.is_news {
                self.tell_wait(new.sandbox, &wait).await?;
            }
            let is_over = wait.waited >= limits.wait;
            if !is_over && began.elapsed() < placing.held_for {
                sleep(SANDBOX_WAIT_POLL.0).await;
                continue;
            }
            let reason = told_of(wait.shortage);
            // Between turns, no job continues the wait.
            if !is_over && !self.is_between_turns {
                return Err(Error::NotYet(reason.to_owned(), until_next(wait.queue_position)));
            }
            store.end_sandbox_wait(new.org, new.session).await?;
            let waited = wait.waited.as_secs();
            return Err(Error::not_admitted(format!("no capacity for it within {waited} s: {reason}")));
        }
    }

    /// Asks one node after the other for capacity.
    async fn ask_nodes(&self, new: &mut NewSandbox, placing: &Placing) -> Result<Asked, Error> {
        let Sandboxes { store, limits, .. } = &self.sandboxes;
        let Placements { asked, queue } =
            self.sandboxes.placements(&self.spec.rootfs, new.size, placing).await?;
        let queue = Some(&*queue).filter(|_| placing.is_in_queue);
        let mut waiting = None;
        for Usable { id, node } in asked {
            new.node = id;
            match store.admit_sandbox(new, self.fence.epoch, &limits.organization, queue).await? {
                Admission::Admitted(waited) => return Ok(Asked::Admitted(node, waited)),
                Admission::Stale => return Err(Error::Stale),
                Admission::TooLarge(shortage) => return Err(too_large(shortage, new.size)),
                Admission::Waiting(wait) => {
                    let first = *waiting.get_or_insert(wait);
                    waiting = Some(Wait { is_news: first.is_news || wait.is_news, ..first });
                    if wait.shortage.is_of_organization() {
                        break;
                    }
                }
            }
        }
        waiting.map(Asked::Waiting).ok_or_else(|| Error::not_yet(NODE_SILENT))
    }

    /// Capabilities that the node of this session's sandbox needs.
    pub(super) async fn needs(&self) -> Result<Needs, Error> {
        let Sandboxes { store, limits, .. } = &self.sandboxes;
        // The kernel and the programs of a machine are not for more than one organization, unless the operator allows it.
        let own_kernel =
            self.spec.rootfs.is_host() && !limits.allows_shared_host && store.has_many_orgs().await?;
        Ok(Needs { size: self.spec.names_size, own_kernel })
    }

    async fn tell_wait(&self, id: SandboxId, wait: &Wait) -> Result<(), Error> {
        let (shortage, queue_position) = (wait.shortage.word().to_owned(), wait.queue_position);
        self.record(vec![Body::SandboxWaiting { sandbox_id: id, shortage, queue_position }]).await
    }
}

/// Time after which a session asks again: the first in the queue soon.
fn until_next(queue_position: u32) -> Duration {
    let (shortest, longest) = SANDBOX_WAIT_POLL;
    SANDBOX_WAIT_POLL_STEP.saturating_mul(queue_position).clamp(shortest, longest)
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
    Error::not_admitted(format!(
        "the environment asks for {wanted}, and the node has less for all sandboxes together"
    ))
}
