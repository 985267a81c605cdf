//! Admission of a new sandbox: capacity on a node and in the organization's share, or a bounded wait for it.
//!
//! Called by `creation` before a sandbox is created. The wait is in the log with its reason and the position in the
//! queue.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Error, Sandboxes,
    nodes::{NODE_SILENT, Needs, Placements, Placing, Usable},
    session::SandboxSession,
};
use crate::{
    base::limit::{IDLE_ROTATION_WAIT, SANDBOX_WAIT_LOG_INTERVAL, SANDBOX_WAIT_POLL},
    domain::{Body, SandboxId, environment::Size},
    sandbox::Sandbox,
    store::{
        admission::{Admission, OrganizationMaxima, QueuePosition, Shortage},
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
    Admitted(Arc<dyn Sandbox>),
    Waiting(Shortage, QueuePosition),
}

impl SandboxSession {
    /// Inserts the row of a sandbox once there is capacity for it on a node. Returns the sandboxes of that node, which
    /// is then the one of `new`.
    ///
    /// # Errors
    /// `PreparationFailure` when there is none in time, or never will be.
    pub(super) async fn admit(
        &self,
        new: &mut NewSandbox,
        placing: &Placing,
    ) -> Result<Arc<dyn Sandbox>, Error> {
        let began = Instant::now();
        let limits = match placing.is_idle {
            // It takes a place from the maintenance of other sandboxes.
            true => {
                Limits { wait: IDLE_ROTATION_WAIT.min(self.sandboxes.limits.wait), ..self.sandboxes.limits }
            }
            false => self.sandboxes.limits,
        };
        let mut told: Option<(Shortage, Instant)> = None;
        let mut counted = None;
        let admitted = loop {
            let store = &self.sandboxes.store;
            let (shortage, position) = match self.ask_nodes(new, placing).await? {
                Asked::Admitted(sandbox) => break sandbox,
                Asked::Waiting(shortage, position) => (shortage, position),
            };
            if began.elapsed() >= limits.wait {
                store.end_sandbox_wait(new.org, new.session).await?;
                return Err(Error::not_admitted(format!(
                    "no capacity for it within {} s: {}",
                    limits.wait.as_secs(),
                    told_of(shortage)
                )));
            }
            if !placing.is_idle {
                counted.get_or_insert_with(|| self.sandboxes.waiting.begin());
            }
            let is_news = told
                .is_none_or(|(before, at)| before != shortage || at.elapsed() >= SANDBOX_WAIT_LOG_INTERVAL);
            if is_news {
                self.tell_wait(new.sandbox, shortage, position).await?;
                told = Some((shortage, Instant::now()));
            }
            tokio::time::sleep(SANDBOX_WAIT_POLL).await;
        };
        if told.is_some() {
            metrics::histogram!("sojourn_sandbox_wait_seconds").record(began.elapsed().as_secs_f64());
        }
        Ok(admitted)
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
                Admission::Admitted => return Ok(Asked::Admitted(node)),
                Admission::Stale => return Err(Error::Stale),
                Admission::TooLarge(shortage) => return Err(too_large(shortage, new.size)),
                Admission::Waiting(shortage, position) => {
                    waiting.get_or_insert((shortage, position));
                    if shortage.is_of_organization() {
                        break;
                    }
                }
            }
        }
        let none = || Error::NotYet(NODE_SILENT.to_owned());
        waiting.map(|(shortage, position)| Asked::Waiting(shortage, position)).ok_or_else(none)
    }

    /// Capabilities that the node of this session's sandbox needs.
    pub(super) async fn needs(&self) -> Result<Needs, Error> {
        let Sandboxes { store, limits, .. } = &self.sandboxes;
        // The kernel and the programs of a machine are not for more than one organization, unless the operator allows it.
        let own_kernel =
            self.spec.rootfs.is_host() && !limits.allows_shared_host && store.has_many_orgs().await?;
        Ok(Needs { size: self.spec.names_size, own_kernel })
    }

    async fn tell_wait(&self, id: SandboxId, shortage: Shortage, position: u32) -> Result<(), Error> {
        let shortage = shortage.word().to_owned();
        self.record(vec![Body::SandboxWaiting { sandbox_id: id, shortage, queue_position: position }]).await
    }
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
