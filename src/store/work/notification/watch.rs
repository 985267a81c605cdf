//! Subscriptions of this process to logs, lists and outputs.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::word::Channel;
use crate::{
    base::limit::{STREAM_RECENT_APPEND_BYTES, STREAM_RECENT_APPENDS},
    domain::Entry,
};

/// The watched logs, lists and outputs, by the id of the session, organization or operation. Cheap to clone.
///
/// Ids are unique across kinds.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Inner>);

#[derive(Default)]
struct Inner {
    all: Mutex<HashMap<Uuid, Watched>>,
    has_new: Notify,
}

/// A watched log, list or output.
#[derive(Default)]
struct Watched {
    /// Number of notifications received.
    notifications: watch::Sender<u64>,
    /// Newly appended entries of the most recent notifications, with the notifications' numbers.
    told: Vec<(u64, Vec<Entry>)>,
}

/// A subscription to one log, list or output, from its creation on.
pub struct Watch {
    watches: Watches,
    watched: Uuid,
    receiver: watch::Receiver<u64>,
}

impl Watches {
    /// Subscribes to a log, a list or an output.
    pub(super) fn watch(&self, watched: Uuid) -> Watch {
        let mut all = self.lock();
        if !all.contains_key(&watched) {
            self.0.has_new.notify_one();
        }
        let receiver = all.entry(watched).or_default().notifications.subscribe();
        Watch { watches: self.clone(), watched, receiver }
    }

    /// Waits until something is watched that was not before.
    ///
    /// Cancel-safe: a wake-up that was not received stays.
    pub(super) async fn new_ones(&self) {
        self.0.has_new.notified().await;
    }

    /// Returns the channels of everything that is watched.
    pub(super) fn channels(&self) -> HashSet<Channel> {
        self.lock().keys().map(|watched| Channel::of_watched(*watched)).collect()
    }

    /// Wakes the watchers of a log, a list or an output.
    pub(super) fn wake(&self, watched: Uuid) {
        if let Some(watched) = self.lock().get(&watched) {
            watched.wake();
        }
    }

    /// Wakes the watchers of everything that has one of these channels.
    pub(super) fn wake_channels(&self, channels: &HashSet<Channel>) {
        for (id, watched) in &*self.lock() {
            if channels.contains(&Channel::of_watched(*id)) {
                watched.wake();
            }
        }
    }

    /// Wakes the watchers of a log that grew, with its new entries if there is a watcher.
    pub(super) fn grew(&self, watched: Uuid, by: impl FnOnce() -> Vec<Entry>) {
        if !self.lock().contains_key(&watched) {
            return;
        }
        let entries = by();
        if let Some(watched) = self.lock().get_mut(&watched) {
            watched.grew(entries);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Watched>> {
        self.0.all.lock().expect("no code panics while it holds the lock of the watches")
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
        let mut watched = self.watches.lock();
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
        let mut all = self.watches.lock();
        // This watch itself is still counted.
        if all.get(&self.watched).is_some_and(|watched| watched.notifications.receiver_count() <= 1) {
            all.remove(&self.watched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::Origin, domain::SessionId};

    #[test]
    fn new_entries_are_returned_once_and_only_without_a_gap() {
        let origin = Origin::system();
        let watches = Watches::default();
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
        let id = session.uuid();
        watches.grew(id, || unreachable!("nobody watches"));
        let mut watch = watches.watch(id);
        let seqs = |watch: &Watch, from, to| {
            watch.told(from, to).map(|told| told.iter().map(|entry| entry.seq).collect::<Vec<_>>())
        };
        // Two appends whose writers sent their notifications in reverse order.
        watches.grew(id, || vec![entry(3, 1)]);
        watches.grew(id, || vec![entry(1, 1), entry(2, 1)]);
        assert_eq!(watch.seen(), 2);
        assert_eq!(seqs(&watch, 0, 2), Some(vec![1, 2, 3]));
        assert_eq!(seqs(&watch, 0, 2), None);
        // One notification came from another process, or carried too many bytes.
        watches.grew(id, || vec![entry(4, 1)]);
        watches.wake(id);
        watches.grew(id, || vec![entry(6, STREAM_RECENT_APPEND_BYTES + 1)]);
        assert_eq!(watch.seen(), 5);
        assert_eq!((seqs(&watch, 2, 4), seqs(&watch, 4, 5)), (None, None));
        for seq in 0..=STREAM_RECENT_APPENDS as i64 {
            watches.grew(id, || vec![entry(seq, 1)]);
        }
        let all = watch.seen();
        assert_eq!(seqs(&watch, 5, all), None);
        assert_eq!(seqs(&watch, all, all), None);
    }

    #[tokio::test]
    async fn what_is_new_to_the_listening_connection_is_announced_and_can_be_woken() {
        let origin = Origin::system();
        let watches = Watches::default();
        let ids: Vec<_> = (0..2).map(|_| SessionId::uuid(origin.id())).collect();
        let mut watch = watches.watch(ids[0]);
        watches.new_ones().await;
        assert_eq!(watches.channels(), HashSet::from([Channel::of_watched(ids[0])]));
        watches.wake_channels(&HashSet::from([Channel::Workers]));
        assert_eq!(watch.seen(), 0);
        watches.wake_channels(&watches.channels());
        watch.changed().await;
        assert_eq!(watch.seen(), 1);
        drop(watch);
        assert_eq!(watches.channels(), HashSet::new());
    }
}
