//! Change notifications within this process and between processes.
//!
//! The tables are authoritative. A notification only shortens a wait, so it may be lost, duplicated
//! or late; every waiter also polls. Outgoing notifications are coalesced: those sent during an
//! interval leave together with the next one. Response deltas pass through here too, and within the
//! process newly appended events.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, broadcast, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    notify::{PAYLOAD_BYTES_MAX, Received},
    response_delta::Deltas,
};
use crate::store::Store;
use crate::{
    base::{
        Id,
        limit::{
            DELTA_ANNOUNCE_INTERVAL, DELTA_INTERVAL, NOTIFICATION_INTERVAL, STREAM_RECENT_APPEND_BYTES,
            STREAM_RECENT_APPENDS,
        },
    },
    domain::{Entry, OperationId, OrgId, SessionId, piece::ResponseDelta},
};

/// Prefix of the id of a session whose deltas are followed.
const FOLLOWED: &str = "deltas:";
/// Delay before listening again after the connection was lost.
const RELISTEN_DELAY: Duration = Duration::from_millis(500);

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notification {
    /// A session's log grew.
    Log(SessionId),
    /// The listing of an organization's sessions changed.
    List(OrgId),
    /// A job is ready.
    Job,
    /// A delivery is due.
    Delivery,
    /// A caller requested something of a running turn.
    Control,
    /// A caller's exec has written output or has ended.
    Output(OperationId),
    /// Readers of this process follow the response deltas of a session.
    Followed(SessionId),
}

/// Notifications of a process. Cheap to clone.
#[derive(Clone)]
pub struct Notifications(Arc<Inner>);

struct Inner {
    process: Uuid,
    /// Watched logs, lists and execs, by the id of the session, organization or operation.
    watched: Mutex<HashMap<Uuid, Watched>>,
    deltas: Deltas,
    jobs: Notify,
    deliveries: Notify,
    controls: Notify,
    outgoing: Mutex<HashSet<Notification>>,
    has_outgoing: Notify,
}

/// A watched log, list or exec.
#[derive(Default)]
struct Watched {
    /// Number of notifications received.
    notifications: watch::Sender<u64>,
    /// Newly appended entries of the most recent notifications, with the notifications' numbers.
    told: Vec<(u64, Vec<Entry>)>,
}

/// A subscription to one log, list or exec, from its creation on.
pub struct Watch {
    notifications: Notifications,
    watched: Uuid,
    receiver: watch::Receiver<u64>,
}

impl Notifications {
    /// Creates the notifications of the process with the id `process`.
    pub fn new(process: Uuid) -> Self {
        Self(Arc::new(Inner {
            process,
            watched: Mutex::default(),
            deltas: Deltas::default(),
            jobs: Notify::new(),
            deliveries: Notify::new(),
            controls: Notify::new(),
            outgoing: Mutex::default(),
            has_outgoing: Notify::new(),
        }))
    }

    /// Notifies this process now and the other processes soon.
    pub fn send(&self, notification: Notification) {
        self.deliver(notification);
        self.publish_soon(notification);
    }

    fn publish_soon(&self, notification: Notification) {
        self.lock(&self.0.outgoing).insert(notification);
        self.0.has_outgoing.notify_one();
    }

    /// Notifies that a log grew, as [`Notifications::send`] does.
    ///
    /// Watchers in this process also get the new entries, so they need not read them. Call it after
    /// the commit.
    pub fn grew(&self, session: SessionId, by: impl FnOnce() -> Vec<Entry>) {
        if !self.lock(&self.0.watched).contains_key(&session.uuid()) {
            return self.send(Notification::Log(session));
        }
        let entries = by();
        if let Some(watched) = self.lock(&self.0.watched).get_mut(&session.uuid()) {
            watched.grew(entries);
        }
        self.publish_soon(Notification::Log(session));
    }

    /// Subscribes to a log. Subscribe before you read it.
    pub fn watch(&self, session: SessionId) -> Watch {
        self.watch_id(session.uuid())
    }

    /// Subscribes to the list of an organization's sessions. Subscribe before you read it.
    pub fn watch_list(&self, org: OrgId) -> Watch {
        self.watch_id(org.uuid())
    }

    /// Subscribes to the output of a caller's exec. Subscribe before you read it.
    pub fn watch_output(&self, exec: OperationId) -> Watch {
        self.watch_id(exec.uuid())
    }

    fn watch_id(&self, watched: Uuid) -> Watch {
        let receiver = self.lock(&self.0.watched).entry(watched).or_default().notifications.subscribe();
        Watch { notifications: self.clone(), watched, receiver }
    }

    /// Subscribes to the response deltas of a session, and announces that to the other processes.
    pub fn pieces(&self, session: SessionId) -> broadcast::Receiver<Arc<ResponseDelta>> {
        let receiver = self.0.deltas.follow(session);
        self.publish_soon(Notification::Followed(session));
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

    /// Waits for a notification that a caller requested something of a running turn.
    pub async fn control(&self) {
        self.0.controls.notified().await;
    }

    /// Sends this process's notifications to the others until `stop`.
    pub async fn publish(&self, store: &Store, stop: CancellationToken) {
        while stop.run_until_cancelled(self.0.has_outgoing.notified()).await.is_some() {
            let batch = mem::take(&mut *self.lock(&self.0.outgoing));
            for payload in payloads(self.0.process, batch) {
                if let Err(error) = store.notify(&payload).await {
                    tracing::debug!(%error, "a notification was not sent; polling will find the work");
                    break;
                }
            }
            // Every notification costs the server a commit and wakes every listener.
            sleep(NOTIFICATION_INTERVAL).await;
        }
    }

    /// Sends response deltas to followers in other processes until `stop`, and announces the followers
    /// of this process.
    pub async fn publish_deltas(&self, store: &Store, stop: CancellationToken) {
        let mut announced = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.deltas.waiting() => {
                    let payloads = self.0.deltas.payloads(self.0.process);
                    if payloads.is_empty() {
                        continue;
                    }
                    if let Err(error) = store.notify_deltas(&payloads).await {
                        tracing::debug!(%error, "response deltas were dropped");
                    }
                    // Every notification costs the server a commit and wakes every listener.
                    sleep(DELTA_INTERVAL).await;
                }
                () = sleep_until(announced + DELTA_ANNOUNCE_INTERVAL) => {
                    announced = Instant::now();
                    let followed = self.0.deltas.followed().into_iter();
                    followed.for_each(|session| self.publish_soon(Notification::Followed(session)));
                }
            }
        }
    }

    /// Receives notifications of other processes until `stop`; reconnects after an error.
    /// `has_followers` also receives response deltas.
    pub async fn listen(&self, store: &Store, has_followers: bool, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Ok(mut listener) = store.listen(has_followers).await {
                // Notifications sent while nobody listened are lost, so wake every waiter once.
                self.wake_all();
                while let Some(Ok(received)) = stop.run_until_cancelled(listener.next()).await {
                    match received {
                        Received::Changes(payload) => self.receive(&payload),
                        Received::Deltas(payload) => self.0.deltas.receive(self.0.process, &payload),
                    }
                }
            }
            stop.run_until_cancelled(tokio::time::sleep(RELISTEN_DELAY)).await;
        }
    }

    fn receive(&self, payload: &str) {
        let mut words = payload.split(' ');
        if words.next() == Some(self.0.process.simple().to_string().as_str()) {
            return;
        }
        for word in words {
            match word {
                "job" => self.deliver(Notification::Job),
                "delivery" => self.deliver(Notification::Delivery),
                "control" => self.deliver(Notification::Control),
                word => match word.strip_prefix(FOLLOWED) {
                    Some(id) => Uuid::try_parse(id)
                        .into_iter()
                        .for_each(|id| self.0.deltas.announce(Id::from_uuid(id))),
                    None => Uuid::try_parse(word).into_iter().for_each(|id| self.wake(id)),
                },
            }
        }
    }

    fn deliver(&self, notification: Notification) {
        match notification {
            Notification::Log(session) => self.wake(session.uuid()),
            Notification::List(org) => self.wake(org.uuid()),
            Notification::Output(exec) => self.wake(exec.uuid()),
            Notification::Job => self.0.jobs.notify_one(),
            Notification::Delivery => self.0.deliveries.notify_one(),
            Notification::Control => self.0.controls.notify_one(),
            // For the other processes only.
            Notification::Followed(_) => {}
        }
    }

    /// Wakes the watchers of a log, a list or an exec. Ids are unique across kinds.
    fn wake(&self, watched: Uuid) {
        if let Some(watched) = self.lock(&self.0.watched).get(&watched) {
            watched.wake();
        }
    }

    fn wake_all(&self) {
        self.0.jobs.notify_one();
        self.0.deliveries.notify_one();
        self.0.controls.notify_one();
        self.lock(&self.0.watched).values().for_each(Watched::wake);
    }

    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> std::sync::MutexGuard<'a, T> {
        mutex.lock().expect("no code panics while it holds a notification lock")
    }
}

impl Watched {
    fn wake(&self) {
        self.notifications.send_modify(|count| *count += 1);
    }

    /// Counts a notification with its new entries. Nobody may ever read them, so few are retained.
    fn grew(&mut self, entries: Vec<Entry>) {
        let bytes: usize = entries.iter().map(|entry| entry.body.len()).sum();
        if bytes <= STREAM_RECENT_APPEND_BYTES {
            if self.told.len() == STREAM_RECENT_APPENDS {
                self.told.remove(0);
            }
            let number = *self.notifications.borrow() + 1;
            self.told.push((number, entries));
        }
        self.wake();
    }
}

impl Watch {
    /// Returns the new entries of the notifications after `from` up to `to`.
    ///
    /// They are in the order of `seq`. `None` when one of these notifications carried no entries.
    /// Removes the returned entries.
    pub fn told(&self, from: u64, to: u64) -> Option<Vec<Entry>> {
        let mut watched = self.notifications.lock(&self.notifications.0.watched);
        let told = &mut watched.get_mut(&self.watched)?.told;
        let later = told.partition_point(|(number, _)| *number <= to);
        let taken: Vec<_> = told.drain(..later).filter(|(number, _)| *number > from).collect();
        if to <= from || taken.len() as u64 != to - from {
            return None;
        }
        let mut entries: Vec<_> = taken.into_iter().flat_map(|(_, entries)| entries).collect();
        entries.sort_by_key(|entry| entry.seq);
        Some(entries)
    }

    /// Returns the number of notifications received and marks them as seen.
    pub fn seen(&mut self) -> u64 {
        *self.receiver.borrow_and_update()
    }

    /// Waits for the next notification since the last call or the creation.
    pub async fn changed(&mut self) {
        // The sender stays in the map as long as any watch exists.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = self.notifications.lock(&self.notifications.0.watched);
        // This watch itself is still counted.
        if all.get(&self.watched).is_some_and(|watched| watched.notifications.receiver_count() <= 1) {
            all.remove(&self.watched);
        }
    }
}

fn payloads(process: Uuid, batch: HashSet<Notification>) -> Vec<String> {
    let head = process.simple().to_string();
    let mut payloads = Vec::new();
    let mut payload = head.clone();
    for notification in batch {
        if payload.len() + 1 + FOLLOWED.len() + 32 > PAYLOAD_BYTES_MAX {
            payloads.push(mem::replace(&mut payload, head.clone()));
        }
        match notification {
            Notification::Log(session) => write!(payload, " {}", session.uuid().simple()),
            Notification::List(org) => write!(payload, " {}", org.uuid().simple()),
            Notification::Output(exec) => write!(payload, " {}", exec.uuid().simple()),
            Notification::Job => write!(payload, " job"),
            Notification::Delivery => write!(payload, " delivery"),
            Notification::Control => write!(payload, " control"),
            Notification::Followed(session) => write!(payload, " {FOLLOWED}{}", session.uuid().simple()),
        }
        .expect("writing to a string cannot fail");
    }
    payloads.push(payload);
    payloads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    #[tokio::test]
    async fn a_watch_receives_notifications_of_another_process() {
        let origin = Origin::system();
        let (here, there) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let notifications = Notifications::new(here);
        let session = origin.id();
        let mut watch = notifications.watch(session);
        for payload in payloads(there, HashSet::from([Notification::Log(session), Notification::Job])) {
            notifications.receive(&payload);
        }
        watch.changed().await;
        notifications.job().await;
        drop(watch);
        assert!(notifications.lock(&notifications.0.watched).is_empty());
    }

    #[test]
    fn new_entries_are_returned_once_and_only_without_a_gap() {
        let origin = Origin::system();
        let notifications = Notifications::new(Uuid::from_u128(1));
        let session: SessionId = origin.id();
        let entry = |seq, bytes| Entry {
            session,
            seq,
            id: origin.id(),
            ts: origin.now(),
            kind: "agent.message".to_owned(),
            level: crate::domain::Level::User,
            actor: "{}".to_owned(),
            turn_id: None,
            step_id: None,
            refs: None,
            body: "x".repeat(bytes),
            content_ref: None,
            body_bytes: 0,
            processed_at: None,
        };
        notifications.grew(session, || unreachable!("nobody watches"));
        let mut watch = notifications.watch(session);
        let seqs = |watch: &Watch, from, to| {
            watch.told(from, to).map(|told| told.iter().map(|entry| entry.seq).collect::<Vec<_>>())
        };
        // Two appends whose writers sent their notifications in reverse order.
        notifications.grew(session, || vec![entry(3, 1)]);
        notifications.grew(session, || vec![entry(1, 1), entry(2, 1)]);
        assert_eq!(watch.seen(), 2);
        assert_eq!(seqs(&watch, 0, 2), Some(vec![1, 2, 3]));
        assert_eq!(seqs(&watch, 0, 2), None);
        // One notification came from another process, or carried too many bytes.
        notifications.grew(session, || vec![entry(4, 1)]);
        notifications.deliver(Notification::Log(session));
        notifications.grew(session, || vec![entry(6, STREAM_RECENT_APPEND_BYTES + 1)]);
        assert_eq!(watch.seen(), 5);
        assert_eq!((seqs(&watch, 2, 4), seqs(&watch, 4, 5)), (None, None));
        for seq in 0..=STREAM_RECENT_APPENDS as i64 {
            notifications.grew(session, || vec![entry(seq, 1)]);
        }
        let all = watch.seen();
        assert_eq!(seqs(&watch, 5, all), None);
        assert_eq!(seqs(&watch, all, all), None);
    }

    #[test]
    fn many_notifications_are_split_below_the_limit_of_postgres() {
        let origin = Origin::system();
        let batch: HashSet<_> = (0..1_000).map(|_| Notification::Log(origin.id())).collect();
        let payloads = payloads(Uuid::from_u128(1), batch);
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() < 8_000));
        assert_eq!(payloads.iter().map(|payload| payload.split(' ').count() - 1).sum::<usize>(), 1_000);
    }
}
