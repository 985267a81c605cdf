//! Job queue over database rows: claim, hold, renew and release leases.
//!
//! Called by `worker`. A [`Lease`] is the right to work on one session. [`Queue::keep`] renews it
//! and also reads callers' requests for the turn. This is our own implementation because no crate
//! offers fencing, node affinity and fairness between organizations.

mod cursor;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use cursor::{Answering, Cursor, Rotation};

use crate::{
    base::{
        Origin,
        limit::{
            CLAIM_CONTENDED, CLAIM_CONTENDED_MAX, CLAIM_MARGIN, CLAIM_MARGIN_MAX, CLAIM_POLL,
            CLAIM_READ_ALL_INTERVAL, CONTROL_INTERVAL, STATEMENT_TIMEOUT, SWEEP_INTERVAL,
        },
    },
    domain::{OrgId, SessionId},
    store::{
        Result, Store,
        job::{ClaimCursor, ClaimSize, Claimant, Claimed, Held, Kind, LeaseState, Watched},
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
    origin: Origin,
    claimant: Claimant,
    held: Mutex<HashMap<Key, Holding>>,
    /// Position from which the next claim begins.
    cursor: Mutex<Cursor>,
    answering: Mutex<Answering>,
}

/// Result of a claim.
pub struct ClaimedLeases {
    pub leases: Vec<Lease>,
    /// More jobs may be ready.
    pub has_more: bool,
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
    pub fn new(store: Store, notifications: Notifications, origin: Origin, claimant: Claimant) -> Self {
        let answering = Mutex::default();
        Self(Arc::new(Inner {
            store,
            notifications,
            origin,
            claimant,
            held: Mutex::default(),
            cursor: Mutex::new(Cursor::new()),
            answering,
        }))
    }

    /// Returns the id of the worker process.
    pub fn worker(&self) -> Uuid {
        self.0.claimant.worker
    }

    /// Claims up to `jobs_max` ready jobs, in rotation over the organizations.
    pub async fn claim(&self, jobs_max: i64) -> Result<ClaimedLeases> {
        self.claim_into(&ClaimSize { jobs: jobs_max, holders: None }).await
    }

    /// Claims up to `jobs_max` ready jobs of organizations that hold fewer than `held_max` here, one of each.
    pub async fn claim_for_others(&self, held_max: usize, jobs_max: i64) -> Result<ClaimedLeases> {
        let mut held: BTreeMap<OrgId, usize> = BTreeMap::new();
        for (org, _, kind) in self.lock().keys() {
            if matches!(kind, Kind::Turn | Kind::Operation) {
                *held.entry(*org).or_default() += 1;
            }
        }
        let holders = held.into_iter().filter(|(_, count)| *count >= held_max).map(|(org, _)| org).collect();
        self.claim_into(&ClaimSize { jobs: jobs_max, holders: Some(holders) }).await
    }

    /// Claims ready jobs.
    ///
    /// Repeats the claim until it finds a job, has visited every organization, or has run for `CLAIM_POLL`; then the
    /// next claim goes on where it ended.
    ///
    /// Claims nothing in the first `CLAIM_AFTER_OUTAGE` after an outage of the database during which leases may have
    /// expired: they do not count for the concurrency of their organization until their holders have renewed them.
    async fn claim_into(&self, size: &ClaimSize) -> Result<ClaimedLeases> {
        if self.answering().holders_renew() {
            return Ok(ClaimedLeases { leases: Vec::new(), has_more: false });
        }
        let mut contended = 0;
        let mut rotation = Rotation::after(self.cursor().after);
        let began = Instant::now();
        loop {
            let cursor = self.claim_cursor();
            let claim = self.0.store.claim(&self.0.claimant, cursor, size).await;
            self.answered(claim.is_ok());
            metrics::counter!("sojourn_claims_total").increment(1);
            let claim = match claim {
                Ok(claim) => claim,
                Err(error) => {
                    self.forget_times();
                    return Err(error);
                }
            };
            {
                let mut cursor = self.cursor();
                (cursor.after, cursor.since) = (claim.after, Some(claim.since));
            }
            rotation.visit(claim.after);
            let found = claim.jobs.len() as i64;
            if found == 0 && claim.has_more && !rotation.is_over && began.elapsed() < CLAIM_POLL {
                continue;
            }
            if found == 0 && claim.is_contended && contended < CLAIM_CONTENDED_MAX {
                contended += 1;
                sleep(CLAIM_CONTENDED.delay(contended, &self.0.origin)).await;
            } else {
                let leases = claim.jobs.into_iter().map(|claimed| self.hold(claimed)).collect();
                let has_more = found > 0 && (found == size.jobs || claim.has_more || claim.is_contended);
                return Ok(ClaimedLeases { leases, has_more });
            }
        }
    }

    /// Claims up to `jobs_max` due jobs that maintain sandboxes; at an interval also those that are of no node, or of a
    /// lost one.
    pub async fn claim_maintenance(&self, jobs_max: usize) -> Result<Vec<Lease>> {
        let jobs_max = i64::try_from(jobs_max).unwrap_or(i64::MAX);
        let reads_others = {
            let mut cursor = self.cursor();
            let is_due = cursor.others_read_at.is_none_or(|at| at.elapsed() >= SWEEP_INTERVAL);
            if is_due {
                cursor.others_read_at = Some(Instant::now());
            }
            is_due
        };
        let claimed = self.0.store.claim_maintenance(&self.0.claimant, reads_others, jobs_max).await;
        self.answered(claimed.is_ok());
        metrics::counter!("sojourn_claims_total").increment(1);
        Ok(claimed?.into_iter().map(|claimed| self.hold(claimed)).collect())
    }

    /// Makes jobs ready whose time has come or whose holder let its lease expire, for at most `CLAIM_POLL`.
    ///
    /// Takes no lease from another holder before the database has answered this process for one
    /// lease period: while the database was down, the holders could not renew either. The server's
    /// start time is not enough: after a crash it first replays its WAL, and a promoted standby was
    /// up all the time.
    pub async fn ready_due_jobs(&self) -> Result<()> {
        let takes_over = self.answering().since.is_some_and(|since| since.elapsed() >= self.0.claimant.lease);
        let began = Instant::now();
        let due = loop {
            let since = self.cursor().due_since;
            let due = self.0.store.ready_due_jobs(self.0.claimant.lease, takes_over, since).await;
            self.answered(due.is_ok());
            let due = due.inspect_err(|_| self.forget_times())?;
            if !due.has_more || due.jobs == 0 || began.elapsed() >= CLAIM_POLL {
                break due;
            }
        };
        // Leases that were not taken over remain due.
        if takes_over && !due.has_more {
            self.cursor().due_since = Some(due.looked_at - CLAIM_MARGIN_MAX);
        }
        // This worker claims next, if it has slots. Jobs of other nodes are found by their own workers, which poll
        // at the same interval.
        Ok(())
    }

    /// Returns where the next claim begins. At an interval it reads back `CLAIM_MARGIN_MAX`, for
    /// transactions that committed long after they made a job ready; at a longer one it reads all.
    fn claim_cursor(&self) -> ClaimCursor {
        let mut cursor = self.cursor();
        if cursor.known_at.elapsed() >= CLAIM_READ_ALL_INTERVAL {
            cursor.forget_times();
        }
        let reads_back = cursor.read_back_at.is_none_or(|at| at.elapsed() >= SWEEP_INTERVAL);
        if reads_back {
            cursor.read_back_at = Some(Instant::now());
        }
        let margin = if reads_back { CLAIM_MARGIN_MAX } else { CLAIM_MARGIN };
        ClaimCursor { after: cursor.after, since: cursor.since, margin }
    }

    /// Reads all jobs again next time: the database may be another one, with an earlier state.
    fn forget_times(&self) {
        self.cursor().forget_times();
    }

    /// Releases every job that this process still holds, whichever task worked on it.
    pub async fn release_all(&self) -> Result<u64> {
        let given = self.0.store.release_all(self.0.claimant.worker).await?;
        self.0.notifications.send(Notification::Jobs);
        Ok(given)
    }

    /// Sets the number of jobs that this worker could start now. Others send it no more than it can take.
    pub fn set_free_slots(&self, count: usize) {
        self.0.notifications.set_free_slots(count);
    }

    /// Wakes another worker, because more jobs are ready than this one has free slots.
    pub fn pass_on(&self) {
        self.0.notifications.pass_on_jobs();
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
        self.answering().note(did, self.0.claimant.lease);
    }

    fn answering(&self) -> std::sync::MutexGuard<'_, Answering> {
        self.0.answering.lock().expect("no code panics while it holds the lock")
    }

    fn cursor(&self) -> std::sync::MutexGuard<'_, Cursor> {
        self.0.cursor.lock().expect("no code panics while it holds the lock")
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
            generation: self.claimed.generation,
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
        let Some(continued) = store.refence(claimant.worker, &self.claimed, claimant.lease).await? else {
            return Ok(false);
        };
        let key = (self.claimed.org, self.claimed.session, self.claimed.kind);
        if let Some(holding) = self.queue.lock().get_mut(&key)
            && holding.epoch == self.claimed.epoch
        {
            holding.epoch = continued.epoch;
        }
        self.claimed = continued;
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
