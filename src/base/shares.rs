//! Places in something bounded, of which each holder has at most a share.
//!
//! Used by `net` for DNS lookups, by `egress` for connections, by `http` for uploads and by `stream`: a holder that
//! takes all of its places waits for its own, or is refused, and the others go on.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places of holders named by `K`, e.g. organizations.
#[derive(Debug)]
pub struct Shares<K> {
    all: Arc<Semaphore>,
    share: usize,
    of: Mutex<HashMap<K, Weak<Semaphore>>>,
}

/// A taken place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    _share: Option<OwnedSemaphorePermit>,
    _all: OwnedSemaphorePermit,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Creates `places`, of which one holder has at most `share`.
    pub fn new(places: usize, share: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(places)), share, of: Mutex::default() }
    }

    /// Takes a place in the order of the calls; `None` is the deployment itself, which has no share. Dropping the
    /// future gives up the wait.
    pub async fn take(&self, holder: Option<K>) -> Place {
        let acquire =
            async |places| Semaphore::acquire_owned(places).await.expect("the semaphore is never closed");
        // Its own places first: who waits for those holds none of the others'.
        let share = match holder {
            Some(holder) => Some(acquire(self.share_of(holder)).await),
            None => None,
        };
        Place { _share: share, _all: acquire(Arc::clone(&self.all)).await }
    }

    /// Takes a place, if one is free.
    pub fn try_take(&self, holder: K) -> Option<Place> {
        let share = self.try_share(holder)?;
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Place { _share: Some(share), _all: all })
    }

    /// Takes one of the holder's own places, if one is free, and none of all.
    pub fn try_share(&self, holder: K) -> Option<OwnedSemaphorePermit> {
        self.share_of(holder).try_acquire_owned().ok()
    }

    fn share_of(&self, holder: K) -> Arc<Semaphore> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = of.get(&holder).and_then(Weak::upgrade) {
            return places;
        }
        // Taken and awaited places keep their semaphore.
        of.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.share));
        of.insert(holder, Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_holder_waits_for_its_own_places_and_others_do_not() {
        let shares = Shares::new(5, 2);
        let first = [shares.take(Some(1)).await, shares.take(Some(1)).await];
        assert!(shares.take(Some(1)).now_or_never().is_none(), "its share is taken");
        let others = [shares.take(Some(2)).await, shares.take(None).await];
        drop(first);
        let again = shares.take(Some(1)).now_or_never().expect("its places are free again");
        let more = shares.try_take(1).expect("a place of its share");
        assert!(shares.try_take(1).is_none() && shares.try_take(2).is_some());
        drop(more);
        drop((others, again));
        assert_eq!(shares.all.available_permits(), 5);
        drop(shares.take(Some(3)).await);
        assert_eq!(shares.of.lock().unwrap().len(), 1, "holders without a place are forgotten");
    }
}
