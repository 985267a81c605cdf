//! Job queue over database rows: claim, hold, renew and release leases.
//!
//! Called by `worker`. A [`Lease`] is the right to work on one session. [`Queue::keep`] renews it
//! and also reads callers' requests for the turn. This is our own implementation because no crate
//! offers fencing, node affinity and fairness between organizations.

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

/// Job queue of one worker process. Cheap to clone.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Store,
    notifications: Notifications,
    claimant: Claimant,
    held: Mutex<HashMap<Key, Holding>>,
    /// The organization that was served last. The next claim begins after it.
    served: Mutex<OrgId>,
    /// Time since when the database has answered every query; `None` while it does not answer.
    answering: Mutex<Option<Instant>>,
}

type Key = (OrgId, SessionId, Kind);

struct Holding {
    epoch: i64,
    state: watch::Sender<LeaseState>,
}

/// The right to work on one session. Renewal stops when it is dropped.
pub struct Lease {
    queue: Queue,
    claimed: Claimed,
    state: watch::Receiver<LeaseState>,
}

impl Queue {
    /// Creates the queue of the worker process identified by `claimant`.
    pub fn new(store: Store, notifications: Notifications, claimant: Claimant) -> Self {
        let served = Mutex::new(Id::from_uuid(Uuid::nil()));
        let answering = Mutex::default();
        Self(Arc::new(Inner { store, notifications, claimant, held: Mutex::default(), served, answering }))
    }

    /// Claims up to `jobs_max` ready jobs, in rotation over the organizations.
    ///
    /// Takes over no job from another holder before the database has answered this process for one
    /// lease period: while the database was down, the holders could not renew either. The server's
    /// start time is not enough: after a crash it first replays its WAL, and a promoted standby was
    /// up all the time.
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

    /// Releases every job that this process still holds, whichever task worked on it.
    pub async fn release_all(&self) -> Result<u64> {
        let given = self.0.store.release_all(self.0.claimant.worker).await?;
        self.0.notifications.send(Notification::Job);
        Ok(given)
    }

    /// Waits until a job may be ready to claim.
    pub async fn ready(&self) {
        self.0.notifications.job().await;
    }

    /// Renews held leases and reads callers' requests, until `stop`.
    ///
    /// The worker cancels `stop` only after its last lease is dropped.
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
        let queried: HashMap<Key, i64> =
            self.lock().iter().map(|(key, holding)| (*key, holding.epoch)).collect();
        if queried.is_empty() {
            return;
        }
        let mut held = Held::default();
        queried.keys().for_each(|(org, session, kind)| held.push(*org, *session, *kind));
        let worker = self.0.claimant.worker;
        let answer = timeout(STATEMENT_TIMEOUT, async {
            if renew {
                self.0.store.renew(worker, self.0.claimant.lease, &held).await
            } else {
                self.0.store.watch(worker, &held).await
            }
        });
        // Without an answer no lease is lost: only the database decides who holds a lease, and it
        // refuses a late holder's writes by the epoch.
        match answer.await {
            Ok(Ok(rows)) => {
                self.answered(true);
                update_holders(&self.lock(), &queried, &rows);
            }
            Ok(Err(error)) => {
                self.answered(false);
                tracing::warn!(%error, "lease renewal failed, retrying");
            }
            Err(_) => {
                self.answered(false);
                tracing::warn!("lease renewal timed out, retrying");
            }
        }
    }

    fn hold(&self, claimed: Claimed) -> Lease {
        let (sender, state) = watch::channel(LeaseState::default());
        let holding = Holding { epoch: claimed.epoch, state: sender };
        let before = self.lock().insert((claimed.org, claimed.session, claimed.kind), holding);
        // This process let the lease expire and claimed the job again. The first holder must stop.
        before.iter().for_each(lose);
        Lease { queue: self.clone(), claimed, state }
    }

    fn answered(&self, did: bool) {
        let mut answering = self.answering();
        *answering = did.then(|| answering.unwrap_or_else(Instant::now));
    }

    fn answering(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.answering.lock().expect("no code panics while it holds the lock")
    }

    fn served(&self) -> std::sync::MutexGuard<'_, OrgId> {
        self.0.served.lock().expect("no code panics while it holds the lock")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Holding>> {
        self.0.held.lock().expect("no code panics while it holds the lease table")
    }
}

/// Passes each row to its holder. A missing row means a lost lease.
///
/// Leases claimed after the query was sent, perhaps for the same job, are not judged by its result.
fn update_holders(held: &HashMap<Key, Holding>, queried: &HashMap<Key, i64>, rows: &[Watched]) {
    let rows: HashMap<Key, &Watched> =
        rows.iter().map(|row| ((row.org, row.session, row.kind), row)).collect();
    for (key, holding) in held.iter().filter(|(key, holding)| queried.get(key) == Some(&holding.epoch)) {
        match rows.get(key) {
            // Ours, under an epoch that `refence` has not stored in the holding yet.
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
    /// Returns the claimed job.
    pub fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    /// Returns a receiver for the state of the lease.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Returns the fence that the database checks on each write.
    pub fn fence(&self) -> Fence {
        Fence {
            org: self.claimed.org,
            session: self.claimed.session,
            epoch: self.claimed.epoch,
            worker: self.queue.0.claimant.worker,
        }
    }

    /// Continues under a new epoch. Returns whether the lease still held.
    ///
    /// No unanswered statement of the old epoch takes effect from here on.
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

    /// Releases the job; it is ready again after `delay`.
    pub async fn release(&self, delay: Duration) -> Result<()> {
        self.queue.0.store.release(self.queue.0.claimant.worker, &self.claimed, delay).await?;
        if !delay.is_zero() {
            self.queue.0.notifications.send(Notification::List(self.claimed.org));
        }
        Ok(())
    }

    /// Finishes the job, unless new input has arrived that it must process.
    pub async fn finish(&self) -> Result<()> {
        self.queue.0.store.finish(self.queue.0.claimant.worker, &self.claimed).await
    }

    /// Waits until the lease is known to be lost.
    ///
    /// Cancel-safe: it only reads.
    pub async fn lost(&self) {
        let mut state = self.state.clone();
        // If the sender is gone, the lease is gone too.
        let _ = state.wait_for(|state| state.lost).await;
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
    fn a_result_does_not_apply_to_leases_claimed_after_its_query() {
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
        // The job was released and claimed again while the query was in progress.
        update_holders(&held, &HashMap::from([(key, 1)]), &[row(1)]);
        update_holders(&held, &HashMap::from([(key, 1)]), &[]);
        update_holders(&held, &HashMap::new(), &[]);
        assert!(!state.borrow().lost);
        // It continues under a new epoch that its holding does not have yet.
        update_holders(&held, &HashMap::from([(key, 2)]), &[row(3)]);
        assert!(!state.borrow().lost);
        update_holders(&held, &HashMap::from([(key, 2)]), &[]);
        assert!(state.borrow().lost);
    }
}
