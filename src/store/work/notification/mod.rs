//! Change notifications within this process and between processes.
//!
//! The tables are authoritative. A notification only shortens a wait, so it may be lost, duplicated
//! or late; every waiter also polls. Each goes to the processes that it concerns: a changed log to those that
//! watch its shard, a job to one worker with a free slot, a delivery to the process that sends the
//! organization's, a caller's request to the holder of the lease. Outgoing notifications are coalesced: those
//! sent during an interval leave together with the next one. Response deltas pass through here too, and within
//! the process newly appended events.

mod exchange;
mod listener;
mod peer;
mod response_delta;
mod watch;
mod word;

use std::{
    mem,
    sync::{Arc, Mutex},
};

use tokio::sync::{Notify, broadcast};
use uuid::Uuid;

pub use self::watch::Watch;
use self::{
    peer::{Concerned, Peers},
    response_delta::Deltas,
    watch::Watches,
    word::{Channel, Outgoing, Word},
};
use super::process::Process;
use crate::domain::{Entry, OperationId, OrgId, SessionId, piece::ResponseDelta};

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notification {
    /// A session's log grew.
    Log(SessionId),
    /// The listing of an organization's sessions changed.
    List(OrgId),
    /// A job is ready. With a node, only that one can run it.
    Job { node: Option<Uuid> },
    /// Many jobs may be ready.
    Jobs,
    /// A delivery of an organization is due.
    Delivery(OrgId),
    /// A caller requested something of a turn that this worker process runs.
    Control(Uuid),
    /// A caller's exec has written output or has ended.
    Output(OperationId),
}

/// Notifications of a process. Cheap to clone.
#[derive(Clone)]
pub struct Notifications(Arc<Inner>);

struct Inner {
    peers: Peers,
    watches: Watches,
    deltas: Deltas,
    jobs: Notify,
    deliveries: Notify,
    controls: Notify,
    /// The processes of the deployment have changed.
    processes: Notify,
    outgoing: Mutex<Outgoing>,
    has_outgoing: Notify,
}

impl Notifications {
    /// Creates the notifications of a process.
    pub fn new(process: Process) -> Self {
        Self(Arc::new(Inner {
            peers: Peers::new(process),
            watches: Watches::default(),
            deltas: Deltas::default(),
            jobs: Notify::new(),
            deliveries: Notify::new(),
            controls: Notify::new(),
            processes: Notify::new(),
            outgoing: Mutex::default(),
            has_outgoing: Notify::new(),
        }))
    }

    /// Notifies the processes that it concerns: this one now, others soon.
    pub fn send(&self, notification: Notification) {
        match notification {
            Notification::Log(session) => self.changed(session.uuid()),
            Notification::List(org) => self.changed(org.uuid()),
            Notification::Output(exec) => self.changed(exec.uuid()),
            Notification::Job { node } => {
                let word = if node.is_some() { Word::JobOfNode } else { Word::Job };
                let concerned = self.0.peers.worker(node);
                self.concern(concerned, word, &self.0.jobs);
                if concerned == Concerned::Nobody {
                    self.publish_soon(Channel::Workers, word);
                }
            }
            Notification::Jobs => {
                self.0.jobs.notify_one();
                self.publish_soon(Channel::Workers, Word::JobPassed);
            }
            Notification::Delivery(org) => {
                self.concern(self.0.peers.dispatcher(org), Word::Delivery, &self.0.deliveries);
            }
            Notification::Control(worker) => {
                let is_here = worker == self.0.peers.own().id;
                let concerned = if is_here { Concerned::Here } else { Concerned::There(worker) };
                self.concern(concerned, Word::Control, &self.0.controls);
            }
        }
    }

    /// Wakes another worker, because more jobs are ready than this one has free slots.
    pub fn pass_on_jobs(&self) {
        if let Some(worker) = self.0.peers.other_worker(false) {
            self.publish_soon(Channel::Process(worker), Word::JobPassed);
        }
    }

    /// Sets the number of jobs that this process could start now.
    pub fn set_free_slots(&self, count: usize) {
        self.0.peers.set_free_slots(i32::try_from(count).unwrap_or(i32::MAX));
    }

    /// Notifies that a log grew, as [`Notifications::send`] does.
    ///
    /// Watchers in this process also get the new entries, so they need not read them. Call it after
    /// the commit.
    pub fn grew(&self, session: SessionId, by: impl FnOnce() -> Vec<Entry>) {
        self.0.watches.grew(session.uuid(), by);
        self.publish_soon(Channel::of_watched(session.uuid()), Word::Changed(session.uuid()));
    }

    /// Subscribes to a log. Subscribe before you read it.
    ///
    /// No append of another process is missed: the watch is woken once when this process begins to listen.
    pub fn watch(&self, session: SessionId) -> Watch {
        self.0.watches.watch(session.uuid())
    }

    /// Subscribes to the list of an organization's sessions. Subscribe before you read it.
    pub fn watch_list(&self, org: OrgId) -> Watch {
        self.0.watches.watch(org.uuid())
    }

    /// Subscribes to the output of a caller's exec. Subscribe before you read it.
    pub fn watch_output(&self, exec: OperationId) -> Watch {
        self.0.watches.watch(exec.uuid())
    }

    /// Subscribes to the response deltas of a session, and announces that to the workers.
    pub fn pieces(&self, session: SessionId) -> broadcast::Receiver<Arc<ResponseDelta>> {
        let receiver = self.0.deltas.follow(session);
        self.publish_soon(Channel::Workers, Word::Followed(session));
        receiver
    }

    /// Sends a delta to the subscribers in this process now and to those in others soon. Best effort.
    pub fn tell(&self, piece: ResponseDelta) {
        self.0.deltas.send(piece);
    }

    /// Returns whether a reader streams the session's response deltas, in any process as far as known.
    pub fn has_readers(&self, session: SessionId) -> bool {
        self.0.deltas.has_readers(session)
    }

    /// Waits for a notification that a job is ready.
    pub async fn job(&self) {
        self.0.jobs.notified().await;
    }

    /// Waits for a notification that a delivery is due.
    pub async fn delivery(&self) {
        self.0.deliveries.notified().await;
    }

    /// Returns the shards of the deliveries that this process sends.
    pub fn delivery_shards(&self) -> Vec<i32> {
        self.0.peers.delivery_shards()
    }

    /// Waits for a notification that a caller requested something of a running turn.
    pub async fn control(&self) {
        self.0.controls.notified().await;
    }

    fn changed(&self, watched: Uuid) {
        self.0.watches.wake(watched);
        self.publish_soon(Channel::of_watched(watched), Word::Changed(watched));
    }

    fn concern(&self, concerned: Concerned, word: Word, here: &Notify) {
        match concerned {
            Concerned::Here => here.notify_one(),
            Concerned::There(process) => self.publish_soon(Channel::Process(process), word),
            Concerned::Nobody => {}
        }
    }

    fn publish_soon(&self, channel: Channel, word: Word) {
        self.outgoing().entry(channel).or_default().insert(word);
        self.0.has_outgoing.notify_one();
    }

    /// Takes the words that wait to be sent.
    fn take_outgoing(&self) -> Outgoing {
        mem::take(&mut *self.outgoing())
    }

    fn receive(&self, payload: &str) {
        let Some((sender, words)) = word::read(payload) else { return };
        if sender == self.0.peers.own().id {
            return;
        }
        for word in words {
            match word {
                Word::Changed(watched) => self.0.watches.wake(watched),
                Word::Job => self.receive_job(false),
                Word::JobOfNode => self.receive_job(true),
                Word::JobPassed => self.0.jobs.notify_one(),
                Word::Delivery => self.0.deliveries.notify_one(),
                Word::Control => self.0.controls.notify_one(),
                Word::Processes => self.0.processes.notify_one(),
                Word::Followed(session) => self.0.deltas.announce(session, sender),
            }
        }
    }

    /// Wakes this worker for a job, or another one that has a free slot if this one has none.
    fn receive_job(&self, is_of_node: bool) {
        if self.0.peers.free_slots() <= 0
            && let Some(other) = self.0.peers.other_worker(is_of_node)
        {
            return self.publish_soon(Channel::Process(other), Word::JobPassed);
        }
        self.0.jobs.notify_one();
    }

    fn wake_all(&self) {
        self.0.jobs.notify_one();
        self.0.deliveries.notify_one();
        self.0.controls.notify_one();
        self.0.watches.wake_channels(&self.0.watches.channels());
    }

    fn outgoing(&self) -> std::sync::MutexGuard<'_, Outgoing> {
        self.0.outgoing.lock().expect("no code panics while it holds a notification lock")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::{word::Payloads, *};
    use crate::base::Origin;

    const HERE: Uuid = Uuid::from_u128(1);
    const THERE: Uuid = Uuid::from_u128(2);

    fn worker(id: Uuid) -> Notifications {
        Notifications::new(Process { id, nodes: Some(Uuid::from_u128(9).into()), is_api: true })
    }

    #[tokio::test]
    async fn a_watch_receives_notifications_of_another_process() {
        let session: SessionId = Origin::system().id();
        let notifications = worker(HERE);
        let mut watch = notifications.watch(session);
        let words = HashSet::from([Word::Changed(session.uuid()), Word::Job]);
        let sent = |by| Payloads::of(by, &HashMap::from([(Channel::Processes, words.clone())])).payloads;
        // Its own are ignored: the watchers in this process were woken before.
        sent(HERE).iter().for_each(|payload| notifications.receive(payload));
        assert_eq!(watch.seen(), 0);
        sent(THERE).iter().for_each(|payload| notifications.receive(payload));
        watch.changed().await;
        notifications.job().await;
    }

    #[tokio::test]
    async fn what_concerns_this_process_alone_is_not_sent_to_others() {
        let org: OrgId = Origin::system().id();
        let notifications = worker(HERE);
        notifications.set_free_slots(1);
        notifications.send(Notification::Job { node: None });
        notifications.send(Notification::Delivery(org));
        notifications.send(Notification::Control(HERE));
        notifications.job().await;
        notifications.delivery().await;
        notifications.control().await;
        assert_eq!(notifications.take_outgoing(), Outgoing::new());
        notifications.send(Notification::Control(THERE));
        let sent = HashMap::from([(Channel::Process(THERE), HashSet::from([Word::Control]))]);
        assert_eq!(notifications.take_outgoing(), sent);
    }

    #[tokio::test]
    async fn a_job_without_a_known_worker_wakes_all() {
        let notifications = Notifications::new(Process { id: HERE, nodes: None, is_api: true });
        notifications.send(Notification::Job { node: None });
        let sent = HashMap::from([(Channel::Workers, HashSet::from([Word::Job]))]);
        assert_eq!(notifications.take_outgoing(), sent);
    }
}
