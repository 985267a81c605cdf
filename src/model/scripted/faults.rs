//! Count of the scripted faults that this process has already returned.
//!
//! Called by `Scripted`. The history alone is not sufficient, because a fault leaves no response in
//! it. A restarted process repeats its faults, like a provider would.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
};

use crate::{
    base::{limit, seal},
    domain::conversation::ModelRequest,
};

type Key = [u8; 32];

/// Pending faults by the hash of their history; bounded.
#[derive(Debug, Default)]
pub(in crate::model) struct Faults(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    played: HashMap<Key, u32>,
    oldest_first: VecDeque<Key>,
    answers: u64,
}

impl Faults {
    /// Returns a number that is unique among the responses of this process.
    pub(super) fn count(&self) -> u64 {
        let mut counted = self.0.lock().expect("no holder of the counter panics");
        counted.answers += 1;
        counted.answers
    }

    /// Returns whether the fault occurs now. The call after the last occurrence removes the entry,
    /// so that another session with an equal history gets the fault again.
    pub(super) fn is_due(&self, request: &ModelRequest, times: u32) -> bool {
        let history = serde_json::to_vec(&request.history).expect("a history is JSON");
        let key = seal::sha256(&history);
        let mut counted = self.0.lock().expect("no holder of the counter panics");
        let played = counted.played.get(&key).copied().unwrap_or(0);
        if played >= times {
            counted.played.remove(&key);
            counted.oldest_first.retain(|other| *other != key);
            return false;
        }
        if counted.played.insert(key, played + 1).is_none() {
            counted.oldest_first.push_back(key);
        }
        while counted.oldest_first.len() > limit::SCRIPT_FAULTS_MAX
            && let Some(oldest) = counted.oldest_first.pop_front()
        {
            counted.played.remove(&oldest);
        }
        true
    }
}
