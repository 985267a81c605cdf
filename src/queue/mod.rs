//! Work as rows: claim, hold, renew, give back.
//!
//! Called by `worker`. A [`Lease`] is the right to work on one session; it is kept
//! alive by [`Queue::keep`], which also hears what callers want of the turn. Our
//! own code, because none of the crates has fencing, affinity to a node and
//! fairness between organizations.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    base::{
        Id,
        limit::{CONTROL_INTERVAL, STATEMENT_TIMEOUT},
    },
    domain::{OrgId, SessionId},
    store::{
        Result, Store,
        job::{Claimant, Claimed, Held, Kind, LeaseState, Watched},
        notification::{Notification, Notifications},
        record::Fence,
    },
};

/// The queue as one worker process sees it. Cheap to clone.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Store,
    notifications: Notifications,
    claimant: Claimant,
    held: Mutex<HashMap<Key, Holding>>,
    /// The organization that was served last: the next claim begins after it.
    served: Mutex<OrgId>,
    /// Since when the database has answered every question; none while it does not.
    answering: Mutex<Option<Instant>>,
}

type Key = (OrgId, SessionId, Kind);

struct Holding {
    epoch: i64,
    state: watch::Sender<LeaseState>,
}

/// The right to work on one session. Dropped, it is kept no longer.
pub struct Lease {
    queue: Queue,
    claimed: Claimed,
    state: watch::Receiver<LeaseState>,
}

impl Queue {
    /// A queue for the worker process that `claimant` names.
    pub fn new(store: Store, notifications: Notifications, claimant: Claimant) -> Self {
        let served = Mutex::new(Id::from_uuid(Uuid::nil()));
        let answering = Mutex::default();
        Self(Arc::new(Inner { store, notifications, claimant, held: Mutex::default(), served, answering }))
    }

    /// Takes up to `jobs_max` ready jobs, of the organizations in turn.
    ///
    /// Nothing is taken over from another holder before the database has answered us
    /// for one lease: while it was away its holders could not renew either. The
    /// server's own start does not tell that alone: after a crash it replays its log
    /// first, and a promoted standby has been up all the time.
    pub async fn claim(&self, jobs_max: i64) -> Result<Vec<Lease>> {
        let after = *self.served();
        let takes_over = self.answering().is_some_and(|since| since.elapsed() >= self.0.claimant.lease);
        let claimed = self.0.store.claim(self.0.claimant, takes_over, after, jobs_max).await;
        self.answered(claimed.is_ok());
        let claimed = claimed?;
        let next = match claimed.last() {
            Some(last) => Some(last.org),
            None => self.0.store.skip_orgs(after).await?,
        };
        if let Some(next) = next {
            *self.served() = next;
        }
        Ok(claimed.into_iter().map(|claimed| self.hold(claimed)).collect())
    }

    /// Gives back everything that this process still holds, whoever worked on it.
    pub async fn give_back(&self) -> Result<u64> {
        let given = self.0.store.give_back(self.0.claimant.worker).await?;
        self.0.notifications.send(Notification::Job);
        Ok(given)
    }

    /// Waits until there may be something to claim.
    pub async fn ready(&self) {
        self.0.notifications.job().await;
    }

    /// Renews what is held and hears what callers want, until `stop`.
    ///
    /// The worker cancels `stop` only after its last lease is gone.
    pub async fn keep(&self, stop: CancellationToken) {
        let mut ticks = interval(CONTROL_INTERVAL.min(self.0.claimant.lease / 4));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.0.notifications.control() => {}
                () = stop.cancelled() => return,
            }
            let renew = renewed.elapsed() >= self.0.claimant.lease / 3;
            if renew {
                renewed = Instant::now();
            }
            self.tick(renew).await;
        }
    }

    async fn tick(&self, renew: bool) {
        let asked: HashMap<Key, i64> =
            self.lock().iter().map(|(key, holding)| (*key, holding.epoch)).collect();
        if asked.is_empty() {
            return;
        }
        let mut held = Held::default();
        asked.keys().for_each(|(org, session, kind)| held.push(*org, *session, *kind));
        let worker = self.0.claimant.worker;
        let answer = timeout(STATEMENT_TIMEOUT, async {
            if renew {
                self.0.store.renew(worker, self.0.claimant.lease, &held).await
            } else {
                self.0.store.watch(worker, &held).await
            }
        });
        // Without an answer nothing is lost: the database alone says whose a lease is,
        // and what it hears of a holder that is too late it refuses by the epoch.
        match answer.await {
            Ok(Ok(rows)) => {
                self.answered(true);
                heard(&self.lock(), &asked, &rows);
            }
            Ok(Err(error)) => {
                self.answered(false);
                tracing::warn!(%error, "leases could not be looked after; trying again");
            }
            Err(_) => {
                self.answered(false);
                tracing::warn!("leases could not be looked after in time; trying again");
            }
        }
    }

    fn hold(&self, claimed: Claimed) -> Lease {
        let (sender, state) = watch::channel(LeaseState::default());
        let holding = Holding { epoch: claimed.epoch, state: sender };
        let before = self.lock().insert((claimed.org, claimed.session, claimed.kind), holding);
        // This process let it run out and took it again: its first holder must stop.
        before.iter().for_each(lose);
        Lease { queue: self.clone(), claimed, state }
    }

    fn answered(&self, did: bool) {
        let mut answering = self.answering();
        *answering = did.then(|| answering.unwrap_or_else(Instant::now));
    }

    fn answering(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.answering.lock().expect("nobody panics who heard from the database")
    }

    fn served(&self) -> std::sync::MutexGuard<'_, OrgId> {
        self.0.served.lock().expect("no holder of the round's place panics")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Holding>> {
        self.0.held.lock().expect("no holder of the lease table panics")
    }
}

/// Tells each holder what its row says; a row that is not there was lost.
///
/// What was claimed after the question, perhaps the same job anew, is not judged by
/// the answer.
fn heard(held: &HashMap<Key, Holding>, asked: &HashMap<Key, i64>, rows: &[Watched]) {
    let rows: HashMap<Key, &Watched> =
        rows.iter().map(|row| ((row.org, row.session, row.kind), row)).collect();
    for (key, holding) in held.iter().filter(|(key, holding)| asked.get(key) == Some(&holding.epoch)) {
        match rows.get(key) {
            // Ours under an epoch that its holder does not know yet: it is about to.
            Some(row) if row.epoch != holding.epoch => {}
            Some(row) => {
                let state = LeaseState {
                    lost: false,
                    cancel_turn: row.cancel_turn,
                    operations: row.operations,
                    is_wanted: row.is_wanted,
                    is_paused: row.is_paused,
                };
                holding.state.send_if_modified(|held| std::mem::replace(held, state) != state);
            }
            None => lose(holding),
        }
    }
}

fn lose(holding: &Holding) {
    holding.state.send_if_modified(|state| !std::mem::replace(&mut state.lost, true));
}

impl Lease {
    /// What was claimed.
    pub fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    /// What happens to the lease, as it happens.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// The right to write, as the database checks it.
    pub fn fence(&self) -> Fence {
        Fence {
            org: self.claimed.org,
            session: self.claimed.session,
            epoch: self.claimed.epoch,
            worker: self.queue.0.claimant.worker,
        }
    }

    /// Goes on under a new epoch, so that nothing that was sent under the old one and
    /// not answered is executed any more. Returns whether the lease still held.
    pub async fn refence(&mut self) -> Result<bool> {
        if self.state.borrow().lost {
            return Ok(false);
        }
        let Inner { store, claimant, .. } = &*self.queue.0;
        let Some(epoch) = store.refence(claimant.worker, &self.claimed, claimant.lease).await? else {
            return Ok(false);
        };
        let key = (self.claimed.org, self.claimed.session, self.claimed.kind);
        if let Some(holding) = self.queue.lock().get_mut(&key)
            && holding.epoch == self.claimed.epoch
        {
            holding.epoch = epoch;
        }
        self.claimed.epoch = epoch;
        Ok(true)
    }

    /// Gives the job back, ready after `delay`.
    pub async fn release(&self, delay: Duration) -> Result<()> {
        self.queue.0.store.release(self.queue.0.claimant.worker, &self.claimed, delay).await?;
        if !delay.is_zero() {
            self.queue.0.notifications.send(Notification::List(self.claimed.org));
        }
        Ok(())
    }

    /// Ends the job, unless input has arrived that it must still see.
    pub async fn finish(&self) -> Result<()> {
        self.queue.0.store.finish(self.queue.0.claimant.worker, &self.claimed).await
    }

    /// Waits until it is known that the lease is another's.
    ///
    /// Cancel-safe: it only looks.
    pub async fn lost(&self) {
        let mut state = self.state.clone();
        // Without a sender there is no lease either.
        let _ = state.wait_for(|state| state.lost).await;
    }

    /// The worker process that holds it.
    pub fn worker(&self) -> Uuid {
        self.queue.0.claimant.worker
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let key = (self.claimed.org, self.claimed.session, self.claimed.kind);
        let mut held = self.queue.lock();
        // The same job may have been lost and claimed again meanwhile.
        if held.get(&key).is_some_and(|holding| holding.epoch == self.claimed.epoch) {
            held.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    #[test]
    fn an_answer_says_nothing_about_what_was_claimed_after_its_question() {
        let origin = Origin::system();
        let key: Key = (origin.id(), origin.id(), Kind::Turn);
        let (sender, state) = watch::channel(LeaseState::default());
        let held = HashMap::from([(key, Holding { epoch: 2, state: sender })]);
        let row = |epoch| Watched {
            org: key.0,
            session: key.1,
            kind: key.2,
            epoch,
            cancel_turn: None,
            operations: None,
            is_wanted: false,
            is_paused: false,
        };
        // The job was given back and claimed again while the answer was under way.
        heard(&held, &HashMap::from([(key, 1)]), &[row(1)]);
        heard(&held, &HashMap::from([(key, 1)]), &[]);
        heard(&held, &HashMap::new(), &[]);
        assert!(!state.borrow().lost);
        // It goes on under a new epoch, and has not been told of it yet.
        heard(&held, &HashMap::from([(key, 2)]), &[row(3)]);
        assert!(!state.borrow().lost);
        heard(&held, &HashMap::from([(key, 2)]), &[]);
        assert!(state.borrow().lost);
    }
}
