//! Messages: each is read once, by the turn that it had joined, or by the running one that it steers.

use std::collections::{BTreeMap, HashSet};

use sojourn::domain::TurnId;
use uuid::Uuid;

use crate::record::Event;

/// The messages of one log.
#[derive(Default)]
pub struct Messages {
    /// The turn that each message joined, by its `seq`.
    joined: BTreeMap<i64, Option<Uuid>>,
    /// Places in which a running turn read them.
    steered: Vec<i64>,
    /// Turns that read their messages: they started, or ended before that.
    reading: HashSet<Uuid>,
    /// Queued turns without any message left.
    gone: HashSet<Uuid>,
}

impl Messages {
    pub fn of(log: &[Event]) -> Self {
        let mut messages = Self::default();
        for event in log {
            match event.kind.as_str() {
                "user.message" => drop(messages.joined.insert(event.seq, event.turn)),
                "turn.started" | "turn.completed" => messages.reading.extend(event.turn),
                "turn.steered" => {
                    let seqs = event.body["seqs"].as_array().into_iter().flatten();
                    messages.steered.extend(seqs.filter_map(serde_json::Value::as_i64));
                    if event.body["from_is_empty"] == true {
                        let from = event.text("from_turn_id").parse::<TurnId>().ok();
                        messages.gone.extend(from.map(|turn| turn.uuid()));
                    }
                }
                _ => {}
            }
        }
        messages
    }

    /// Returns the number of messages that a running turn read.
    pub fn steered(&self) -> u64 {
        self.steered.len() as u64
    }

    /// Returns whether a queued turn is gone, because another one read its messages.
    pub fn is_gone(&self, turn: Uuid) -> bool {
        self.gone.contains(&turn)
    }

    /// Returns the messages that were read not once.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (seq, turn) in &self.joined {
            let steered = self.steered.iter().filter(|steered| *steered == seq).count();
            // A turn does not read what another one has read.
            let own = steered == 0 && turn.is_some_and(|turn| self.reading.contains(&turn));
            let times = steered + usize::from(own);
            if times != 1 {
                faults.push(format!("message {seq} is read {times} times"));
            }
        }
        let known = |seq: &&i64| !self.joined.contains_key(seq);
        faults.extend(
            self.steered.iter().filter(known).map(|seq| format!("{seq} is steered and is no message")),
        );
        faults.extend(self.gone.intersection(&self.reading).map(|turn| format!("{turn} is gone, and runs")));
        faults
    }
}
