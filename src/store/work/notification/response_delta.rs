//! Deltas of streaming model responses, for followers in this process and in others.
//!
//! Best effort: the complete response follows every delta, so one that is lost or dropped costs
//! nothing. Within the process a delta goes directly to its followers. A process with followers
//! announces their sessions to the workers, again and again; a process that runs a turn sends deltas
//! only of sessions that were announced lately, and only to the processes that announced them.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use tokio::sync::{Notify, broadcast};
use uuid::Uuid;

use super::word::{Channel, PAYLOAD_BYTES_MAX, Payloads};
use crate::{
    base::{
        limit::{
            DELTA_ANNOUNCE_TTL, DELTA_ANNOUNCED_MAX, DELTA_TEXT_BYTES_MAX, DELTA_WAITING_BYTES_MAX,
            STREAM_DELTAS,
        },
        text,
    },
    domain::{SessionId, piece::ResponseDelta},
};

/// Followers of a process, and deltas on their way to other processes.
#[derive(Default)]
pub(super) struct Deltas {
    followed: Mutex<HashMap<SessionId, broadcast::Sender<Arc<ResponseDelta>>>>,
    /// Sessions that are followed in other processes, with these and the time of their last announcement.
    announced: Mutex<HashMap<SessionId, HashMap<Uuid, Instant>>>,
    waiting: Mutex<Waiting>,
    has_waiting: Notify,
}

#[derive(Default)]
struct Waiting {
    deltas: Vec<ResponseDelta>,
    bytes: usize,
    /// Number of payloads sent so far. Postgres drops equal payloads of one transaction.
    sent: u64,
}

impl Deltas {
    /// Subscribes to the deltas of a session.
    pub(super) fn follow(&self, session: SessionId) -> broadcast::Receiver<Arc<ResponseDelta>> {
        let mut followed = lock(&self.followed);
        // Senders without receivers are removed when the next reader subscribes.
        followed.retain(|_, sender| sender.receiver_count() > 0);
        followed.entry(session).or_insert_with(|| broadcast::Sender::new(STREAM_DELTAS)).subscribe()
    }

    /// Returns the sessions that readers of this process follow.
    pub(super) fn followed(&self) -> Vec<SessionId> {
        let followed = lock(&self.followed);
        let live = followed.iter().filter(|(_, sender)| sender.receiver_count() > 0);
        live.map(|(session, _)| *session).collect()
    }

    /// Whether any reader follows the session, in this process or, as announced, in another one.
    pub(super) fn has_readers(&self, session: SessionId) -> bool {
        let is_followed =
            lock(&self.followed).get(&session).is_some_and(|sender| sender.receiver_count() > 0);
        is_followed || self.is_announced(session)
    }

    /// Sends a delta to its followers.
    pub(super) fn send(&self, delta: ResponseDelta) {
        if self.is_announced(delta.session) {
            lock(&self.waiting).push(&delta);
            self.has_waiting.notify_one();
        }
        self.deliver(delta);
    }

    /// Records that readers of another process follow a session.
    pub(super) fn announce(&self, session: SessionId, process: Uuid) {
        let mut announced = lock(&self.announced);
        if announced.len() >= DELTA_ANNOUNCED_MAX {
            announced.retain(|_, followers| followers.values().any(is_recent));
        }
        if announced.len() < DELTA_ANNOUNCED_MAX || announced.contains_key(&session) {
            let followers = announced.entry(session).or_default();
            followers.retain(|_, at| is_recent(at));
            followers.insert(process, Instant::now());
        }
    }

    /// Waits until deltas wait for another process.
    ///
    /// Cancel-safe: a wake-up that was not received stays.
    pub(super) async fn waiting(&self) {
        self.has_waiting.notified().await;
    }

    /// Takes the deltas that wait, as payloads for the processes that follow them.
    pub(super) fn payloads(&self, process: Uuid) -> Payloads {
        let announced = lock(&self.announced);
        let followers = |session: SessionId| {
            let followers = announced.get(&session).into_iter().flatten();
            followers.filter(|(_, at)| is_recent(at)).map(|(process, _)| *process).collect()
        };
        lock(&self.waiting).payloads(process, followers)
    }

    /// Delivers the deltas of a payload of another process to the followers in this one.
    pub(super) fn receive(&self, payload: &str) {
        // A line that this version cannot read is dropped.
        let deltas = payload.lines().skip(1).filter_map(|line| serde_json::from_str(line).ok());
        deltas.for_each(|delta| self.deliver(delta));
    }

    fn deliver(&self, delta: ResponseDelta) {
        if let Some(sender) = lock(&self.followed).get(&delta.session) {
            // All receivers may be gone.
            let _ = sender.send(Arc::new(delta));
        }
    }

    fn is_announced(&self, session: SessionId) -> bool {
        lock(&self.announced).get(&session).is_some_and(|followers| followers.values().any(is_recent))
    }
}

impl Waiting {
    /// Adds a delta, joined with the previous one of its block.
    fn push(&mut self, delta: &ResponseDelta) {
        if self.bytes + delta.text.len() > DELTA_WAITING_BYTES_MAX {
            return;
        }
        self.bytes += delta.text.len();
        let previous = self.deltas.iter_mut().rev().find(|other| other.session == delta.session);
        match previous {
            Some(previous) if is_next(previous, delta) => previous.text.push_str(&delta.text),
            Some(_) | None => self.deltas.push(delta.clone()),
        }
    }

    fn payloads(&mut self, process: Uuid, followers: impl Fn(SessionId) -> Vec<Uuid>) -> Payloads {
        self.bytes = 0;
        let mut by_follower: HashMap<Uuid, Vec<String>> = HashMap::new();
        for delta in mem::take(&mut self.deltas) {
            for follower in followers(delta.session) {
                by_follower.entry(follower).or_default().extend(lines(&delta));
            }
        }
        let mut all = Payloads::default();
        for (follower, lines) in by_follower {
            let mut payload = String::new();
            for line in lines {
                if !payload.is_empty() && payload.len() + 1 + line.len() > PAYLOAD_BYTES_MAX {
                    all.push(Channel::Deltas(follower), mem::take(&mut payload));
                }
                if payload.is_empty() {
                    self.sent += 1;
                    payload = format!("{} {}", process.simple(), self.sent);
                }
                payload.push('\n');
                payload.push_str(&line);
            }
            all.push(Channel::Deltas(follower), payload);
        }
        all
    }
}

fn is_recent(announced_at: &Instant) -> bool {
    announced_at.elapsed() < DELTA_ANNOUNCE_TTL
}

/// Whether a delta continues the block of another one.
fn is_next(previous: &ResponseDelta, next: &ResponseDelta) -> bool {
    let place = |delta: &ResponseDelta| {
        (delta.turn, delta.step, delta.attempt, delta.seq, delta.block, delta.is_thinking)
    };
    place(previous) == place(next)
}

/// The lines of JSON of a delta, each with a part of its text.
fn lines(delta: &ResponseDelta) -> Vec<String> {
    let (mut rest, mut lines) = (delta.text.as_str(), Vec::new());
    while !rest.is_empty() {
        let part = text::truncate(rest, DELTA_TEXT_BYTES_MAX);
        rest = &rest[part.len()..];
        let part = ResponseDelta { text: part.to_owned(), ..delta.clone() };
        lines.extend(serde_json::to_string(&part));
    }
    lines
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a lock of deltas")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    const HERE: Uuid = Uuid::from_u128(1);
    const THERE: Uuid = Uuid::from_u128(2);
    const ELSEWHERE: Uuid = Uuid::from_u128(3);

    fn delta(origin: &Origin, session: SessionId, text: &str) -> ResponseDelta {
        let (turn, step) = (origin.id(), origin.id());
        let text = text.to_owned();
        ResponseDelta { session, turn, step, attempt: 1, seq: 7, block: 0, is_thinking: false, text }
    }

    #[tokio::test]
    async fn deltas_reach_a_follower_in_another_process_joined_and_in_order() {
        let origin = Origin::system();
        let session: SessionId = origin.id();
        let (here, there) = (Deltas::default(), Deltas::default());
        let mut reader = there.follow(session);
        assert_eq!(there.followed(), [session]);
        here.announce(session, THERE);
        let first = delta(&origin, session, "one ");
        let thinking = ResponseDelta { is_thinking: true, block: 1, ..first.clone() };
        for next in [&first, &ResponseDelta { text: "two".to_owned(), ..first.clone() }, &thinking] {
            here.send(next.clone());
        }
        here.waiting().await;
        let payloads = here.payloads(HERE);
        assert_eq!(payloads.channels, [Channel::Deltas(THERE).to_string()]);
        payloads.payloads.iter().for_each(|payload| there.receive(payload));
        assert_eq!(reader.try_recv().expect("a delta").text, "one two");
        assert_eq!(*reader.try_recv().expect("a delta"), thinking);
        assert!(reader.try_recv().is_err() && here.payloads(HERE).len() == 0);
    }

    #[test]
    fn deltas_leave_only_for_the_processes_that_follow_their_session() {
        let origin = Origin::system();
        let (here, sessions) = (Deltas::default(), [origin.id(), origin.id()]);
        here.announce(sessions[0], THERE);
        here.announce(sessions[1], THERE);
        here.announce(sessions[1], ELSEWHERE);
        sessions.iter().for_each(|session| here.send(delta(&origin, *session, "text")));
        let sent = here.payloads(HERE);
        let of = |process| {
            let name = Channel::Deltas(process).to_string();
            let all = sent.channels.iter().zip(&sent.payloads).filter(move |(channel, _)| **channel == name);
            all.map(|(_, payload)| payload.lines().count() - 1).sum::<usize>()
        };
        assert_eq!((sent.len(), of(THERE), of(ELSEWHERE)), (2, 2, 1));
    }

    #[test]
    fn nothing_is_sent_for_a_session_that_nobody_follows() {
        let origin = Origin::system();
        let (here, session) = (Deltas::default(), origin.id());
        here.send(delta(&origin, session, "text"));
        assert!(!here.has_readers(session) && here.payloads(HERE).len() == 0);
        let reader = here.follow(session);
        assert!(here.has_readers(session));
        here.send(delta(&origin, session, "text"));
        assert!(here.payloads(HERE).len() == 0, "the follower is in this process");
        drop(reader);
        assert!(!here.has_readers(session) && here.followed().is_empty());
    }

    #[test]
    fn payloads_are_bounded_and_differ() {
        let origin = Origin::system();
        let (here, session) = (Deltas::default(), origin.id());
        here.announce(session, THERE);
        let escaped = "\u{1}".repeat(DELTA_WAITING_BYTES_MAX);
        here.send(delta(&origin, session, &escaped));
        here.send(delta(&origin, session, "dropped"));
        let payloads = here.payloads(HERE).payloads;
        assert!(payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES_MAX));
        let distinct: std::collections::HashSet<_> = payloads.iter().collect();
        assert_eq!(distinct.len(), payloads.len());
        let (there, mut read) = (Deltas::default(), 0);
        let mut reader = there.follow(session);
        for payload in &payloads {
            there.receive(payload);
            while let Ok(delta) = reader.try_recv() {
                read += delta.text.len();
            }
        }
        assert_eq!(read, DELTA_WAITING_BYTES_MAX);
    }
}
