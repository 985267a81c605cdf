//! Cache of verified API keys.

use std::{collections::HashMap, sync::Mutex, time::Instant};

use crate::{base::limit, domain::KeyId, store::key::LiveKey};

/// Short-lived cache of verified keys. A revocation must take effect within 5 s.
#[derive(Default)]
pub(super) struct KeyCache(Mutex<HashMap<[u8; 32], (Instant, LiveKey)>>);

impl KeyCache {
    /// Returns the key whose secret has this SHA-256, if it was verified recently.
    pub(super) fn get(&self, hash: &[u8; 32]) -> Option<LiveKey> {
        let cache = self.0.lock().expect("the key cache lock is not poisoned");
        cache.get(hash).filter(|(at, _)| at.elapsed() < limit::KEY_CACHE_TTL).map(|(_, key)| key.clone())
    }

    /// Removes a key that this process revoked. Other processes drop it after the cache TTL.
    pub(super) fn invalidate(&self, key: KeyId) {
        self.0.lock().expect("the key cache lock is not poisoned").retain(|_, (_, held)| held.key != key);
    }

    /// Adds a verified key.
    pub(super) fn put(&self, hash: [u8; 32], key: LiveKey) {
        let mut cache = self.0.lock().expect("the key cache lock is not poisoned");
        if cache.len() >= limit::KEY_CACHE_ENTRIES_MAX {
            cache.retain(|_, (at, _)| at.elapsed() < limit::KEY_CACHE_TTL);
        }
        if cache.len() < limit::KEY_CACHE_ENTRIES_MAX {
            cache.insert(hash, (Instant::now(), key));
        }
    }
}
