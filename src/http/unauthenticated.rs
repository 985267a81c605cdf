//! Bounds of callers whose secret is not known: per peer address and in total.
//!
//! Called by the extractors that look a secret up. A secret that was valid before is looked up in any case, so that
//! requests with guessed secrets stop no caller with a valid one. The id of a trigger is no secret: its lookups are
//! bounded in another way, which does not depend on whether it exists.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::Semaphore;

use super::error::{ApiError, Result};
use crate::{
    base::{
        limit::{
            SECRETS_REMEMBERED_MAX, TRIGGER_LOOKUPS_MAX, TRIGGER_LOOKUPS_PER_PEER, UNKNOWN_SECRET_TTL,
            UNKNOWN_SECRETS_BURST, UNKNOWN_SECRETS_CONCURRENT_MAX, UNKNOWN_SECRETS_PER_PEER_BURST,
            UNKNOWN_SECRETS_PER_SECOND, UNKNOWN_SECRETS_WAIT, VALID_SECRET_TTL,
        },
        shares::Shares,
    },
    store::Result as StoreResult,
    wire::ErrorType,
};

/// Address of a connection's client, an extension of its requests. Behind a trusted proxy it is the address that the
/// proxy names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer(IpAddr);

impl Peer {
    /// The peer of an address. One IPv6 network of 64 bits is one peer, because a client chooses the rest.
    pub(super) fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Results of recent lookups of secrets, and the rates of failed ones.
pub(super) struct Lookups {
    unknown: Recent<[u8; 32]>,
    valid: Recent<[u8; 32]>,
    by_peer: DefaultKeyedRateLimiter<Peer>,
    total: DefaultDirectRateLimiter,
    /// Peers that must wait, and until when.
    refused: Recent<Peer>,
    /// Places of lookups of secrets that were not valid before.
    places: Semaphore,
    /// Places of lookups of triggers.
    triggers: Shares<Peer>,
}

impl Default for Lookups {
    fn default() -> Self {
        let quota = |burst: u32| {
            let of = |number: u32| number.try_into().expect("it is not zero");
            Quota::per_second(of(UNKNOWN_SECRETS_PER_SECOND)).allow_burst(of(burst))
        };
        Self {
            unknown: Recent::new(UNKNOWN_SECRET_TTL),
            valid: Recent::new(VALID_SECRET_TTL),
            by_peer: RateLimiter::keyed(quota(UNKNOWN_SECRETS_PER_PEER_BURST)),
            total: RateLimiter::direct(quota(UNKNOWN_SECRETS_BURST)),
            refused: Recent::new(UNKNOWN_SECRETS_WAIT),
            places: Semaphore::new(UNKNOWN_SECRETS_CONCURRENT_MAX),
            triggers: Shares::new(TRIGGER_LOOKUPS_MAX, TRIGGER_LOOKUPS_PER_PEER),
        }
    }
}

impl Lookups {
    /// Looks a secret up with `find`, unless the same was unknown a moment ago.
    ///
    /// # Errors
    /// `rate_limited` after too many unknown secrets of the peer, or of all; those of `find`.
    pub(super) async fn find<T>(
        &self,
        peer: Option<Peer>,
        hash: [u8; 32],
        find: impl Future<Output = StoreResult<Option<T>>>,
    ) -> Result<Option<T>> {
        // Waits for a place, so that many that ask at once take neither the connections of the database nor more
        // lookups than their rate.
        let _place = match self.valid.has(&hash) || self.is_decided(peer, &hash) {
            true => None,
            false => self.places.acquire().await.ok(),
        };
        if self.unknown.has(&hash) {
            return Ok(None);
        }
        if !self.valid.has(&hash) && peer.is_some_and(|peer| self.refused.has(&peer)) {
            return Err(too_many());
        }
        let found = find.await?;
        match &found {
            Some(_) => self.valid.add(hash),
            None => self.failed(peer, hash),
        }
        Ok(found)
    }

    /// Whether a lookup of a secret that was not valid before is answered without one.
    fn is_decided(&self, peer: Option<Peer>, hash: &[u8; 32]) -> bool {
        self.unknown.has(hash) || peer.is_some_and(|peer| self.refused.has(&peer))
    }

    /// Looks up the trigger of a message with `find`, within the share of the sender's address.
    ///
    /// No result is remembered and no address is refused here: the answer to the next message would then tell whether
    /// the trigger exists, and a message with a valid signature would be refused because of those without one.
    pub(super) async fn find_trigger<T>(&self, peer: Option<Peer>, find: impl Future<Output = T>) -> T {
        let _place = self.triggers.take(peer).await;
        find.await
    }

    /// Counts a request that proves nothing, such as one without a valid signature, as one with an unknown secret.
    ///
    /// # Errors
    /// `rate_limited` as for [`Lookups::find`].
    pub(super) fn unproven(&self, peer: Option<Peer>) -> Result<()> {
        if peer.is_some_and(|peer| self.refused.has(&peer)) {
            return Err(too_many());
        }
        self.count(peer);
        Ok(())
    }

    fn failed(&self, peer: Option<Peer>, hash: [u8; 32]) {
        self.unknown.add(hash);
        self.count(peer);
    }

    fn count(&self, peer: Option<Peer>) {
        let Some(peer) = peer else { return };
        // Above the total, every peer that fails must wait.
        if self.by_peer.check_key(&peer).is_err() || self.total.check().is_err() {
            self.refused.add(peer);
        }
        if self.by_peer.len() > SECRETS_REMEMBERED_MAX {
            self.by_peer.retain_recent();
        }
    }
}

fn too_many() -> ApiError {
    metrics::counter!("sojourn_unauthenticated_refused_total").increment(1);
    let text = "too many requests without a valid key or signature from this address; slow down";
    ApiError { retry_after: Some(UNKNOWN_SECRETS_WAIT), ..ApiError::new(ErrorType::RateLimited, text) }
}

/// Keys that were noted in the last `ttl`; at most `SECRETS_REMEMBERED_MAX` entries.
struct Recent<K> {
    ttl: Duration,
    at: Mutex<HashMap<K, Instant>>,
}

impl<K: Eq + Hash> Recent<K> {
    fn new(ttl: Duration) -> Self {
        Self { ttl, at: Mutex::default() }
    }

    fn has(&self, key: &K) -> bool {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.get(key).is_some_and(|at| at.elapsed() < self.ttl)
    }

    fn add(&self, key: K) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.len() >= SECRETS_REMEMBERED_MAX {
            at.retain(|_, at| at.elapsed() < self.ttl);
        }
        if at.len() < SECRETS_REMEMBERED_MAX {
            at.insert(key, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn unknown_secrets_of_one_peer_stop_neither_valid_ones_nor_others() {
        let (lookups, asked) = (Lookups::default(), AtomicUsize::new(0));
        let hash = |number: u32| crate::base::seal::sha256(&number.to_be_bytes());
        let peer = |text: &str| Some(Peer::new(text.parse().expect("an address")));
        let find = async |peer, hash, found: Option<()>| {
            let find = async {
                asked.fetch_add(1, Ordering::Relaxed);
                Ok(found)
            };
            lookups.find(peer, hash, find).await
        };
        let (guesser, other) = (peer("2001:db8::1"), peer("192.0.2.1"));
        let valid = hash(u32::MAX);
        assert_eq!(find(guesser, valid, Some(())).await.expect("found"), Some(()));
        assert_eq!(find(guesser, hash(0), None).await.expect("unknown"), None);
        assert_eq!(find(guesser, hash(0), Some(())).await.expect("unknown"), None, "the answer is kept");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        let mut refused = 0;
        for number in 1..4 * UNKNOWN_SECRETS_PER_PEER_BURST {
            // Each from another address of its network.
            let guesser = peer(&format!("2001:db8::{number:x}"));
            refused += u32::from(find(guesser, hash(number), None).await.is_err());
        }
        assert!(refused >= 2 * UNKNOWN_SECRETS_PER_PEER_BURST, "{refused}");
        let error = find(guesser, hash(u32::MAX - 1), Some(())).await.expect_err("its peer must wait");
        assert_eq!((error.status().as_u16(), error.retry_after), (429, Some(UNKNOWN_SECRETS_WAIT)));
        assert_eq!(find(guesser, valid, Some(())).await.expect("it was valid"), Some(()));
        assert_eq!(find(other, hash(u32::MAX - 2), Some(())).await.expect("another peer"), Some(()));
        // A wrong signature is no better than an unknown secret.
        assert_eq!(lookups.unproven(guesser).expect_err("it must wait").status().as_u16(), 429);
        let proofs = (0..4 * UNKNOWN_SECRETS_PER_PEER_BURST).map(|_| lookups.unproven(other));
        assert!(proofs.filter(Result::is_err).count() >= 2 * UNKNOWN_SECRETS_PER_PEER_BURST as usize);
    }

    #[tokio::test]
    async fn secrets_that_are_asked_at_once_are_looked_up_a_few_at_a_time() {
        let (lookups, asked) = (Lookups::default(), AtomicUsize::new(0));
        let (under_way, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let peer = Some(Peer::new("192.0.2.1".parse().expect("an address")));
        let finds = (0..2_000_u32).map(|number| {
            let find = async {
                asked.fetch_add(1, Ordering::Relaxed);
                most.fetch_max(under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                under_way.fetch_sub(1, Ordering::Relaxed);
                Ok(None::<()>)
            };
            lookups.find(peer, crate::base::seal::sha256(&number.to_be_bytes()), find)
        });
        let refused = futures::future::join_all(finds).await.iter().filter(|found| found.is_err()).count();
        let (asked, most) = (asked.into_inner(), most.into_inner());
        assert!(most <= UNKNOWN_SECRETS_CONCURRENT_MAX, "{most} at a time");
        assert!(asked <= 2 * UNKNOWN_SECRETS_PER_PEER_BURST as usize, "{asked} of 2,000");
        assert_eq!(asked + refused, 2_000);
    }

    #[tokio::test]
    async fn messages_of_one_address_wait_and_those_of_others_do_not() {
        let lookups = Lookups::default();
        let peer = |text: &str| Some(Peer::new(text.parse().expect("an address")));
        let (one, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let mut stuck: Vec<_> =
            (0..10).map(|_| lookups.find_trigger(one, std::future::pending::<()>()).boxed()).collect();
        assert!(stuck.iter_mut().all(|lookup| lookup.now_or_never().is_none()));
        assert!(lookups.find_trigger(one, async {}).now_or_never().is_none(), "its share is taken");
        assert!(lookups.find_trigger(other, async {}).now_or_never().is_some());
        // Messages without a valid signature do not change that.
        while lookups.unproven(other).is_ok() {}
        assert!(lookups.find_trigger(other, async {}).now_or_never().is_some());
    }
}
