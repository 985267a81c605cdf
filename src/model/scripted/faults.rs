//! Which scripted faults have been played already, in this process.
//!
//! Called by `Scripted`. The history alone cannot tell: a fault leaves no answer
//! in it. A process that starts anew plays its faults anew, like a provider.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
};

use crate::{
    base::{limit, seal},
    domain::conversation::ModelRequest,
};

type Key = [u8; 32];

/// Faults under way, by the history that meets them; bounded.
#[derive(Debug, Default)]
pub(in crate::model) struct Faults(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    played: HashMap<Key, u32>,
    oldest_first: VecDeque<Key>,
    answers: u64,
}

impl Faults {
    /// A number that no other answer of this process has.
    pub(super) fn count(&self) -> u64 {
        let mut counted = self.0.lock().expect("no holder of the counter panics");
        counted.answers += 1;
        counted.answers
    }

    /// Whether the fault strikes now; the call after the last strike forgets it,
    /// so that another session with an equal history meets it again.
    pub(super) fn strikes(&self, request: &ModelRequest, times: u32) -> bool {
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
