//! Processes of the deployment as this one knows them, and the choice of the one that a notification concerns.
//!
//! The knowledge is a few seconds old. A wrong choice costs a poll, never a job or a delivery.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicI32, Ordering},
};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{
    base::limit::DELIVERY_SHARDS,
    domain::OrgId,
    store::work::process::{Heartbeat, Process, ReachableNodes},
};

/// This process and the others.
pub(super) struct Peers {
    own: Process,
    /// Jobs that this process could start now.
    free_slots: AtomicI32,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The other workers. Each choice takes one of its free slots away, until its next heartbeat.
    workers: Vec<Heartbeat>,
    /// The worker that was chosen last: choices rotate.
    last: usize,
    /// The process that sends the deliveries of each shard; empty while none is known.
    dispatchers: Vec<Uuid>,
}

/// The process that a notification concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    /// This one.
    Here,
    There(Uuid),
    /// None is known.
    Nobody,
}

impl Peers {
    pub(super) fn new(own: Process) -> Self {
        Self { own, free_slots: AtomicI32::new(0), known: Mutex::default() }
    }

    pub(super) fn own(&self) -> &Process {
        &self.own
    }

    pub(super) fn free_slots(&self) -> i32 {
        self.free_slots.load(Ordering::Relaxed)
    }

    pub(super) fn set_free_slots(&self, count: i32) {
        self.free_slots.store(count, Ordering::Relaxed);
    }

    /// Replaces what is known by the live processes, in the order of their ids.
    pub(super) fn learn(&self, live: &[Heartbeat]) {
        let mut workers = live.to_vec();
        workers.retain(|peer| peer.nodes.is_some() && peer.id != self.own.id);
        let apis: Vec<_> = live.iter().filter(|peer| peer.is_api).map(|peer| peer.id).collect();
        let of_shard = |shard| apis.iter().max_by_key(|api| weight(**api, shard)).copied();
        let dispatchers = (0..DELIVERY_SHARDS).filter_map(of_shard).collect();
        let mut known = self.lock();
        // Each process begins elsewhere, so that they do not all wake the same worker first.
        let last = if known.workers.is_empty() { self.own.id.as_u128() as usize } else { known.last };
        *known = Known { workers, last, dispatchers };
    }

    /// Chooses the worker for a job that can run on any node, or on `node`.
    ///
    /// This process if it has a free slot, else the next one that has, else any.
    pub(super) fn worker(&self, node: Option<Uuid>) -> Concerned {
        let own = self.own.nodes.as_ref();
        let is_own = own.is_some_and(|nodes| node.is_none_or(|node| nodes.contains(node)));
        if is_own && self.free_slots() > 0 {
            return Concerned::Here;
        }
        let node = node.map(|node| [node]);
        let nodes = node.as_ref().map(<[Uuid; 1]>::as_slice);
        let mut known = self.lock();
        if let Some(worker) = known.next(nodes, true) {
            return Concerned::There(worker);
        }
        if is_own {
            return Concerned::Here;
        }
        match known.next(nodes, false).or_else(|| known.next(None, false)) {
            Some(worker) => Concerned::There(worker),
            None if own.is_some() => Concerned::Here,
            None => Concerned::Nobody,
        }
    }

    /// Chooses another worker that has a free slot, for a job of any node or of one that this process reaches.
    pub(super) fn other_worker(&self, is_of_node: bool) -> Option<Uuid> {
        let own = self.own.nodes.as_ref().filter(|_| is_of_node).map(ReachableNodes::list);
        self.lock().next(own.as_deref(), true)
    }

    /// Chooses the process that sends an organization's deliveries.
    pub(super) fn dispatcher(&self, org: OrgId) -> Concerned {
        match self.lock().dispatchers.get(usize::from(shard(org))) {
            Some(process) if *process == self.own.id => Concerned::Here,
            Some(process) => Concerned::There(*process),
            None if self.own.is_api => Concerned::Here,
            None => Concerned::Nobody,
        }
    }

    /// Returns the shards of the deliveries that this process sends; all of them while none is known.
    pub(super) fn delivery_shards(&self) -> Vec<i32> {
        let known = self.lock();
        let is_own = |shard: &u8| {
            known.dispatchers.get(usize::from(*shard)).is_none_or(|process| *process == self.own.id)
        };
        (0..DELIVERY_SHARDS).filter(is_own).map(i32::from).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no code panics while it holds the lock of the peers")
    }
}

impl Known {
    /// Chooses a worker that reaches one of `nodes`, if any are named.
    fn next(&mut self, nodes: Option<&[Uuid]>, is_free: bool) -> Option<Uuid> {
        let count = self.workers.len();
        for step in 1..=count {
            let at = self.last.wrapping_add(step) % count;
            let worker = &mut self.workers[at];
            let is_of_node = nodes.is_none_or(|nodes| worker.reaches_any(nodes));
            if is_of_node && (!is_free || worker.free_slots > 0) {
                worker.free_slots -= 1;
                let id = worker.id;
                self.last = at;
                return Some(id);
            }
        }
        None
    }
}

/// Share of an organization's deliveries. The statement that claims deliveries computes the same.
fn shard(org: OrgId) -> u8 {
    org.uuid().as_bytes()[15] % DELIVERY_SHARDS
}

/// Weight of a process for a shard. The one with the highest has it, so that a process that comes or goes
/// changes only its own shards (rendezvous hashing).
fn weight(process: Uuid, shard: u8) -> [u8; 32] {
    Sha256::new().chain_update(process.as_bytes()).chain_update([shard]).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Id;

    const NODES: [Uuid; 2] = [Uuid::from_u128(100), Uuid::from_u128(200)];

    fn worker(id: u128, node: Uuid, free_slots: i32) -> Heartbeat {
        Heartbeat { id: Uuid::from_u128(id), nodes: Some(vec![node]), is_api: false, free_slots }
    }

    fn api(id: u128) -> Heartbeat {
        Heartbeat { id: Uuid::from_u128(id), nodes: None, is_api: true, free_slots: 0 }
    }

    fn process(heartbeat: Heartbeat) -> Process {
        let nodes = heartbeat.nodes.map(|nodes| nodes[0].into());
        Process { id: heartbeat.id, nodes, is_api: heartbeat.is_api }
    }

    #[test]
    fn a_job_goes_to_one_worker_with_a_free_slot_in_rotation() {
        let peers = Peers::new(process(api(1)));
        assert_eq!(peers.worker(None), Concerned::Nobody);
        peers.learn(&[api(1), worker(2, NODES[0], 2), worker(3, NODES[0], 0), worker(4, NODES[1], 2)]);
        let mut chosen: Vec<_> = (0..4).map(|_| peers.worker(None)).collect();
        assert_ne!(chosen[0], chosen[1]);
        chosen.sort_by_key(|chosen| format!("{chosen:?}"));
        let there = |id| Concerned::There(Uuid::from_u128(id));
        assert_eq!(chosen, [there(2), there(2), there(4), there(4)]);
        // Every slot is taken, as far as known: somebody must look nevertheless.
        assert!(matches!(peers.worker(None), Concerned::There(_)));
        assert_eq!(peers.other_worker(false), None);
    }

    #[test]
    fn a_job_of_a_node_goes_to_its_workers() {
        let peers = Peers::new(process(api(1)));
        peers.learn(&[api(1), worker(2, NODES[0], 9), worker(3, NODES[1], 1)]);
        for _ in 0..3 {
            assert_eq!(peers.worker(Some(NODES[1])), Concerned::There(Uuid::from_u128(3)));
        }
        // Nobody of that node is alive: another one decides whether it may take it over.
        assert!(matches!(peers.worker(Some(Uuid::from_u128(9))), Concerned::There(_)));
    }

    #[test]
    fn a_job_goes_to_a_worker_that_reaches_its_node_now() {
        let peers = Peers::new(process(api(1)));
        let both = Heartbeat { nodes: Some(NODES.to_vec()), ..worker(3, NODES[0], 9) };
        let neither = Heartbeat { nodes: Some(Vec::new()), ..worker(4, NODES[0], 9) };
        peers.learn(&[api(1), worker(2, NODES[0], 9), both, neither]);
        for _ in 0..3 {
            assert_eq!(peers.worker(Some(NODES[1])), Concerned::There(Uuid::from_u128(3)));
        }
        let own = process(worker(5, NODES[1], 0));
        let reached = own.nodes.clone().expect("a worker");
        let peers = Peers::new(own);
        peers.set_free_slots(1);
        peers.learn(&[worker(5, NODES[1], 1), worker(2, NODES[0], 9)]);
        assert_eq!(peers.worker(Some(NODES[1])), Concerned::Here);
        assert_eq!(peers.other_worker(true), None);
        // Its agent is gone.
        assert!(reached.set(NODES[1], false));
        assert_eq!(peers.worker(None), Concerned::Here);
        assert!(matches!(peers.worker(Some(NODES[1])), Concerned::There(_)));
        assert!(reached.set(NODES[0], true) && !reached.set(NODES[0], true));
        assert_eq!(peers.other_worker(true), Some(Uuid::from_u128(2)));
    }

    #[test]
    fn a_worker_takes_its_own_jobs_while_it_has_a_free_slot() {
        let peers = Peers::new(process(worker(2, NODES[0], 0)));
        peers.learn(&[worker(2, NODES[0], 0), worker(3, NODES[1], 5)]);
        peers.set_free_slots(1);
        assert_eq!(peers.worker(None), Concerned::Here);
        assert_eq!(peers.worker(Some(NODES[1])), Concerned::There(Uuid::from_u128(3)));
        peers.set_free_slots(0);
        assert_eq!(peers.worker(None), Concerned::There(Uuid::from_u128(3)));
        assert_eq!(peers.worker(Some(NODES[0])), Concerned::Here);
    }

    #[test]
    fn every_share_of_the_deliveries_has_one_process_and_few_move_when_one_ends() {
        let own = |ids: &[u128], id: u128| {
            let peers = Peers::new(process(api(id)));
            peers.learn(&ids.iter().map(|id| api(*id)).collect::<Vec<_>>());
            peers.delivery_shards()
        };
        let of = |ids: &[u128]| ids.iter().map(|id| own(ids, *id)).collect::<Vec<_>>();
        let (before, after) = (of(&[1, 2, 3, 4]), of(&[1, 2, 3]));
        let mut all = before.concat();
        all.sort_unstable();
        assert_eq!(all, (0..i32::from(DELIVERY_SHARDS)).collect::<Vec<_>>());
        assert!(before.iter().all(|shards| shards.len() > 4), "{before:?}");
        for (before, after) in before.iter().zip(&after) {
            assert!(before.iter().all(|shard| after.contains(shard)), "{before:?} {after:?}");
        }
        // A process that knows nobody yet sends everything.
        assert_eq!(Peers::new(process(api(1))).delivery_shards().len(), usize::from(DELIVERY_SHARDS));
    }

    #[test]
    fn a_delivery_wakes_the_process_of_its_share() {
        let org: OrgId = Id::from_uuid(Uuid::from_u128(0x1234_5678));
        let live = [api(1), api(2), api(3)];
        let concerned = live.clone().map(|at| {
            let peers = Peers::new(process(at));
            peers.learn(&live);
            peers.dispatcher(org)
        });
        assert_eq!(concerned.iter().filter(|concerned| **concerned == Concerned::Here).count(), 1);
    }
}
