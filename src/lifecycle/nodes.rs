//! The nodes of a worker, and on which of them a session gets its sandbox.
//!
//! A node joins when the worker first reaches it, and stays. While it does not answer, its sessions wait: the worker
//! claims only jobs of nodes that it reaches. Called by `admission` before a sandbox is created, by `session`, `idle` and
//! `leased_sandbox` for the state of a node, and by `worker`, which keeps the list.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::future::join_all;
use tokio::{sync::watch, time::timeout};
use uuid::Uuid;

use super::{Error, Sandboxes};
use crate::{
    base::limit::{NODE_HEARTBEAT_TIMEOUT, NODE_ROOTFS_TIMEOUT, SANDBOX_NODES_ASKED_MAX},
    domain::{
        OrgId,
        environment::Size,
        rootfs::{Build, RootFs, State},
    },
    sandbox::{Capabilities, Node, Sandbox},
    store::{self, process::ReachableNodes},
};

/// Reason why a session has to wait.
pub(super) const NODE_SILENT: &str = "its node does not answer";

/// The nodes of a worker. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Nodes(Arc<Inner>);

struct Inner {
    known: RwLock<Vec<WorkerNode>>,
    /// Nodes that answered the most recent call.
    reachable: ReachableNodes,
    /// Number of nodes.
    count: watch::Sender<usize>,
}

/// A node of a worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WorkerNode {
    pub id: Uuid,
    /// Creates sandboxes; `Err` is the reason why the node cannot.
    pub provider: Result<Arc<dyn Node>, String>,
}

impl Default for Nodes {
    fn default() -> Self {
        let (known, reachable) = (RwLock::default(), ReachableNodes::default());
        Self(Arc::new(Inner { known, reachable, count: watch::Sender::new(0) }))
    }
}

impl Nodes {
    /// Adds a node, which answers. Returns false if there is one with this id.
    pub(crate) fn add(&self, node: WorkerNode) -> bool {
        let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|one| one.id == node.id) {
            return false;
        }
        self.0.reachable.set(node.id, true);
        known.push(node);
        self.0.count.send_replace(known.len());
        true
    }

    /// The nodes, in the order in which they joined.
    pub(crate) fn all(&self) -> Vec<WorkerNode> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A receiver that changes when a node joins.
    pub(crate) fn joined(&self) -> watch::Receiver<usize> {
        self.0.count.subscribe()
    }

    /// Nodes that answered the most recent call.
    pub(crate) fn reachable(&self) -> &ReachableNodes {
        &self.0.reachable
    }

    /// A node by its id.
    pub(crate) fn get(&self, id: Uuid) -> Option<WorkerNode> {
        self.all().into_iter().find(|node| node.id == id)
    }

    /// Asks a node how it is, and notes whether it answers.
    pub(super) async fn answers(&self, id: Uuid) -> bool {
        let Some(WorkerNode { provider: Ok(node), .. }) = self.get(id) else { return false };
        let answers = node.status().await.is_ok();
        self.0.reachable.set(id, answers);
        answers
    }

    /// The sandboxes of a node.
    ///
    /// # Errors
    /// `Unavailable`: the worker does not know the node, or it cannot create sandboxes.
    pub(crate) fn sandboxes_on(&self, id: Uuid) -> Result<Arc<dyn Sandbox>, Error> {
        let node = self.get(id).ok_or_else(|| Error::Unavailable("its node has other workers".to_owned()))?;
        Ok(node.provider.map_err(Error::Unavailable)?)
    }

    /// The nodes on which a sandbox could be created: those that answer; all of them if none does, because an agent
    /// that is being replaced answers soon.
    ///
    /// # Errors
    /// `Unavailable` with the reason if no node can create sandboxes.
    pub(crate) fn usable(&self) -> Result<Vec<Usable>, Error> {
        let mut reason = "no node of this worker has answered yet".to_owned();
        let mut usable = Vec::new();
        for WorkerNode { id, provider } in self.all() {
            match provider {
                Ok(node) => usable.push(Usable { id, node }),
                Err(why) => reason = why,
            }
        }
        if usable.is_empty() {
            return Err(Error::Unavailable(reason));
        }
        let reachable: HashSet<_> = self.0.reachable.list().into_iter().collect();
        if usable.iter().any(|one| reachable.contains(&one.id)) {
            usable.retain(|one| reachable.contains(&one.id));
        }
        Ok(usable)
    }
}

/// A node that can create sandboxes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Usable {
    pub id: Uuid,
    pub node: Arc<dyn Node>,
}

/// State of the node of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    Answers,
    /// It does not answer this worker, and its sandboxes may still run.
    Silent,
    Lost,
}

/// Nodes for a new sandbox.
pub(super) struct Placements {
    /// Those to ask for capacity, in this order.
    pub asked: Vec<Usable>,
    /// Those for which the session waits if none has capacity.
    pub queue: Vec<Uuid>,
}

impl Placements {
    fn one(usable: Usable) -> Self {
        Self { queue: vec![usable.id], asked: vec![usable] }
    }
}

/// Requirements of a new sandbox on its node, and its place among those that wait.
pub(super) struct Placing {
    pub org: OrgId,
    pub needs: Needs,
    /// The node with files of the session that exist nowhere else.
    pub kept: Option<Uuid>,
    /// Behind the sessions that asked before.
    pub is_in_queue: bool,
    /// Time for which it waits for capacity under the lease of its job.
    pub held_for: Duration,
}

/// Capabilities that a node needs for a sandbox.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// Enforces the size that the environment sets.
    pub size: bool,
    pub own_kernel: bool,
}

impl Needs {
    fn refusal(self, capabilities: Capabilities) -> Option<Error> {
        if self.size && !capabilities.enforces_size {
            return Some(Error::Unavailable(NO_SIZE.to_owned()));
        }
        let is_shared = self.own_kernel && !capabilities.has_own_kernel;
        is_shared.then(|| Error::not_admitted(SHARED_HOST.to_owned()))
    }
}

/// Error if a node cannot enforce a size that the environment sets.
const NO_SIZE: &str = "the environment names `cpus` or `memory`, and its node cannot hold a sandbox to them: \
    it is not root, and no cgroup is delegated to it";
/// Error if several organizations would share the kernel and the programs of the machine.
const SHARED_HOST: &str = "several organizations would share the kernel and the programs of this machine: set \
    SOJOURN_SANDBOX_RUNTIME=runsc or SOJOURN_SANDBOX_IMAGE=debian, or accept it with SOJOURN_ALLOW_SHARED_HOST=on";

impl Sandboxes {
    /// Whether the node of a claimed job is gone with its sandboxes: the job was claimed although this worker does not
    /// reach the node, because its heartbeats stopped for too long. They may have begun again since.
    pub(crate) async fn is_lost(&self, node: Uuid) -> Result<bool, store::Error> {
        if self.nodes.reachable().contains(node) {
            return Ok(false);
        }
        self.store.is_node_lost(node, NODE_HEARTBEAT_TIMEOUT).await
    }

    pub(super) async fn state_of(&self, node: Uuid) -> Result<NodeState, Error> {
        Ok(match self.nodes.reachable().contains(node) {
            true => NodeState::Answers,
            false if self.is_lost(node).await? => NodeState::Lost,
            false => NodeState::Silent,
        })
    }

    /// The nodes on which a sandbox can be created now, those with the most free capacity first.
    ///
    /// # Errors
    /// `NotYet` if a node that does not answer now may serve; else the reason why none can.
    pub(super) async fn placements(
        &self,
        rootfs: &RootFs,
        size: Size,
        placing: &Placing,
    ) -> Result<Placements, Error> {
        let usable = self.nodes.usable()?;
        if let Some(kept) = placing.kept {
            if let Some(one) = usable.iter().find(|one| one.id == kept) {
                // Of a sandbox that is replaced, or with one node, the creation says what is missing.
                let may_lack = placing.is_in_queue && usable.len() > 1 && !rootfs.is_host();
                if may_lack && !has_rootfs(one, rootfs).await {
                    return Err(self.image_lacking(kept, placing.org, rootfs).await?);
                }
                return Ok(Placements::one(one.clone()));
            }
            if !self.is_lost(kept).await? {
                return Err(Error::not_yet(NODE_SILENT));
            }
        }
        let mut suitable = self.suitable(usable, placing.needs)?;
        if suitable.len() == 1 {
            return Ok(Placements::one(suitable.remove(0)));
        }
        if !rootfs.is_host() {
            let having = join_all(suitable.iter().map(|one| has_rootfs(one, rootfs))).await;
            let mut having = having.into_iter();
            suitable.retain(|_| having.next().unwrap_or(false));
        }
        let ids: Vec<_> = suitable.iter().map(|one| one.id).collect();
        let candidates = self.store.nodes_by_free_capacity(&ids, size).await?;
        let with = |ids: Vec<Uuid>| {
            ids.into_iter().filter_map(|id| suitable.iter().find(|one| one.id == id).cloned())
        };
        // One that is too small for it says so.
        let fitting = candidates.iter().any(|one| one.fits);
        let candidates: Vec<_> = candidates.into_iter().filter(|one| one.fits || !fitting).collect();
        let queue: Vec<_> = candidates.iter().map(|one| one.node_id).collect();
        let free = candidates.iter().filter(|one| one.has_capacity).map(|one| one.node_id);
        let mut asked: Vec<_> = free.take(SANDBOX_NODES_ASKED_MAX).collect();
        asked.extend(queue.first().filter(|_| asked.is_empty()));
        if asked.is_empty() {
            return Err(Error::not_yet("no node that answers can make its sandbox yet"));
        }
        Ok(Placements { asked: with(asked).collect(), queue })
    }

    /// Why a session waits whose files are on a node that lacks its image; the image is requested there.
    async fn image_lacking(&self, node: Uuid, org: OrgId, rootfs: &RootFs) -> Result<Error, Error> {
        Ok(match self.store.request_rootfs_on_node(node, org, rootfs).await? {
            Some(Build { state: State::Failed, error, .. }) => {
                let reason = error.unwrap_or_else(|| "the build failed".to_owned());
                Error::Unavailable(format!("its image cannot be built on the node of its files: {reason}"))
            }
            _ => Error::not_yet("its image is built on the node of its files"),
        })
    }

    /// Those of the nodes whose capabilities suit.
    fn suitable(&self, mut usable: Vec<Usable>, needs: Needs) -> Result<Vec<Usable>, Error> {
        let mut refused = None;
        usable.retain(|one| {
            let refusal = needs.refusal(one.node.capabilities());
            let suits = refusal.is_none();
            refused = refusal.or(refused.take());
            suits
        });
        match refused {
            Some(refused) if usable.is_empty() => {
                let suits = |node: WorkerNode| {
                    node.provider.is_ok_and(|node| needs.refusal(node.capabilities()).is_none())
                };
                let is_away = self.nodes.all().into_iter().any(suits);
                Err(if is_away { Error::not_yet(NODE_SILENT) } else { refused })
            }
            _ => Ok(usable),
        }
    }
}

/// Whether a node says soon that it has a root file system.
async fn has_rootfs(on: &Usable, rootfs: &RootFs) -> bool {
    let asked = timeout(NODE_ROOTFS_TIMEOUT, on.node.has_rootfs(rootfs)).await;
    asked.is_ok_and(|has| has.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_joins_once_and_is_used_while_it_answers() {
        let nodes = Nodes::default();
        let node = |id| WorkerNode { id: Uuid::from_u128(id), provider: Err(format!("no runtime on {id}")) };
        let reason = |nodes: &Nodes| match nodes.usable() {
            Err(Error::Unavailable(reason)) => reason,
            _ => panic!("no node can create sandboxes"),
        };
        assert!(reason(&nodes).contains("answered yet"));
        let joined = nodes.joined();
        assert!(nodes.add(node(1)) && nodes.add(node(2)) && !nodes.add(node(1)));
        assert!(joined.has_changed().unwrap());
        assert_eq!(reason(&nodes), "no runtime on 2");
        assert_eq!(nodes.reachable().list(), [Uuid::from_u128(1), Uuid::from_u128(2)]);
        nodes.reachable().set(Uuid::from_u128(1), false);
        assert!(!nodes.reachable().contains(Uuid::from_u128(1)) && nodes.get(Uuid::from_u128(1)).is_some());
        assert!(nodes.sandboxes_on(Uuid::from_u128(3)).is_err());
    }
}
