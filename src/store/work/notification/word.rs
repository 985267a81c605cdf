//! Channels and payloads of notifications.
//!
//! Postgres (up to 18) wakes every listening backend of the database for each notification, whatever its
//! channel; only backends that listen to the channel send it to their process. So channels save the messages
//! and the work of the processes, and few notifying commits save the rest.

use std::{
    collections::{HashMap, HashSet},
    fmt, mem,
};

use uuid::Uuid;

use crate::{
    base::{Id, limit::WATCH_SHARDS},
    domain::SessionId,
};

/// Maximum payload of one notification in bytes; Postgres accepts at most 8,000.
pub(super) const PAYLOAD_BYTES_MAX: usize = 7_900;

/// Prefix of the id of a session whose deltas are followed.
const FOLLOWED: &str = "deltas:";
/// Prefix of the channels of response deltas.
const DELTAS: &str = "sojourn_delta_";

/// Receivers of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Channel {
    /// Every process.
    Processes,
    /// Every worker.
    Workers,
    /// One process.
    Process(Uuid),
    /// One process, for response deltas.
    Deltas(Uuid),
    /// Processes that watch a log, a list or an output of this shard.
    Watch(u16),
}

/// A notification, as a word of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Word {
    /// A log, a list or an output has changed.
    Changed(Uuid),
    /// A job is ready.
    Job,
    /// A job is ready that only the receiver's node can run.
    JobOfNode,
    /// A job is ready, and another worker had no free slot for it.
    JobPassed,
    /// A delivery is due.
    Delivery,
    /// A caller requested something of a running turn.
    Control,
    /// A process has started or ended.
    Processes,
    /// Readers of the sending process follow the response deltas of a session.
    Followed(SessionId),
}

/// Words that wait to be sent, by their receivers.
pub(super) type Outgoing = HashMap<Channel, HashSet<Word>>;

/// Channels and payloads of one notifying statement, in the same order.
#[derive(Clone, Debug, Default)]
pub(super) struct Payloads {
    pub(super) channels: Vec<String>,
    pub(super) payloads: Vec<String>,
}

impl Channel {
    /// The channel of a watched log, list or output.
    ///
    /// The last bytes of an id are random.
    pub(super) fn of_watched(id: Uuid) -> Self {
        let bytes = id.as_bytes();
        Self::Watch(u16::from_be_bytes([bytes[14], bytes[15]]) % WATCH_SHARDS)
    }

    /// Whether a channel with this name carries response deltas.
    pub(super) fn is_of_deltas(name: &str) -> bool {
        name.starts_with(DELTAS)
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processes => f.write_str("sojourn_processes"),
            Self::Workers => f.write_str("sojourn_workers"),
            Self::Process(process) => write!(f, "sojourn_process_{}", process.simple()),
            Self::Deltas(process) => write!(f, "{DELTAS}{}", process.simple()),
            Self::Watch(shard) => write!(f, "sojourn_watch_{shard}"),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(id) => write!(f, "{}", id.simple()),
            Self::Job => f.write_str("job"),
            Self::JobOfNode => f.write_str("job_of_node"),
            Self::JobPassed => f.write_str("job_passed"),
            Self::Delivery => f.write_str("delivery"),
            Self::Control => f.write_str("control"),
            Self::Processes => f.write_str("processes"),
            Self::Followed(session) => write!(f, "{FOLLOWED}{}", session.uuid().simple()),
        }
    }
}

impl Word {
    /// Returns `None` for a word of another version.
    fn parse(word: &str) -> Option<Self> {
        let id = |text: &str| Uuid::try_parse(text).ok();
        match word {
            "job" => Some(Self::Job),
            "job_of_node" => Some(Self::JobOfNode),
            "job_passed" => Some(Self::JobPassed),
            "delivery" => Some(Self::Delivery),
            "control" => Some(Self::Control),
            "processes" => Some(Self::Processes),
            word => match word.strip_prefix(FOLLOWED) {
                Some(session) => id(session).map(|id| Self::Followed(Id::from_uuid(id))),
                None => id(word).map(Self::Changed),
            },
        }
    }
}

impl Payloads {
    /// The payloads of `process` with these words.
    pub(super) fn of(process: Uuid, outgoing: &Outgoing) -> Self {
        let head = process.simple().to_string();
        let mut all = Self::default();
        for (channel, words) in outgoing {
            let mut payload = head.clone();
            for word in words {
                let word = word.to_string();
                if payload.len() + 1 + word.len() > PAYLOAD_BYTES_MAX {
                    all.push(*channel, mem::replace(&mut payload, head.clone()));
                }
                payload.push(' ');
                payload.push_str(&word);
            }
            all.push(*channel, payload);
        }
        all
    }

    pub(super) fn push(&mut self, channel: Channel, payload: String) {
        self.channels.push(channel.to_string());
        self.payloads.push(payload);
    }

    pub(super) fn len(&self) -> usize {
        self.payloads.len()
    }
}

/// Reads a payload: its sender and its words.
pub(super) fn read(payload: &str) -> Option<(Uuid, impl Iterator<Item = Word>)> {
    let mut words = payload.split(' ');
    let sender = Uuid::try_parse(words.next()?).ok()?;
    Some((sender, words.filter_map(Word::parse)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    const PROCESS: Uuid = Uuid::from_u128(1);

    #[test]
    fn every_word_is_read_as_it_was_written() {
        let session: SessionId = Origin::system().id();
        let words = HashSet::from([
            Word::Changed(session.uuid()),
            Word::Job,
            Word::JobOfNode,
            Word::JobPassed,
            Word::Delivery,
            Word::Control,
            Word::Processes,
            Word::Followed(session),
        ]);
        let all = Payloads::of(PROCESS, &HashMap::from([(Channel::Workers, words.clone())]));
        assert_eq!(all.channels, ["sojourn_workers"]);
        let (sender, read) = read(&all.payloads[0]).expect("a payload");
        assert_eq!((sender, read.collect::<HashSet<_>>()), (PROCESS, words));
    }

    #[test]
    fn many_notifications_are_split_below_the_limit_of_postgres() {
        let origin = Origin::system();
        let session = || -> SessionId { origin.id() };
        let words: HashSet<_> = (0..1_000).map(|_| Word::Changed(session().uuid())).collect();
        let all = Payloads::of(PROCESS, &HashMap::from([(Channel::Watch(3), words.clone())]));
        assert!(all.len() > 1 && all.payloads.iter().all(|payload| payload.len() < 8_000));
        assert!(all.channels.iter().all(|channel| channel == "sojourn_watch_3"));
        let read = all.payloads.iter().flat_map(|payload| read(payload).expect("a payload").1);
        assert_eq!(read.collect::<HashSet<_>>(), words);
    }

    #[test]
    fn ids_are_spread_over_the_shards() {
        let origin = Origin::system();
        let session = || -> SessionId { origin.id() };
        let shards: HashSet<_> = (0..1_000).map(|_| Channel::of_watched(session().uuid())).collect();
        assert!(shards.len() > 400, "{}", shards.len());
    }
}
