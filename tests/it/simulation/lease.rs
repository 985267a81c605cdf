//! The lease of one session as a pure state machine: the same rules as the SQL of `store::job`.
//!
//! Time is the database's and is passed by the caller. A claim raises the epoch and moves the end of the
//! lease in one step. Apart from it, only archive raises the epoch, and a holder that lost a response.

use std::time::Duration;

/// A worker process, as the job's row names it.
pub type WorkerId = u64;

/// The job of a session, and its epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lease {
    pub epoch: i64,
    pub job: Option<Job>,
}

/// A waiting or held job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The worker that holds it.
    pub worker: Option<WorkerId>,
    /// Time from which it may be claimed: its due time, or the end of its lease.
    pub ready_at: Duration,
    /// Number of expired leases since the job was last finished.
    pub takeovers: i32,
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claimed {
    pub epoch: i64,
    /// The previous holder's lease had expired.
    pub taken_over: bool,
    pub takeovers: i32,
}

impl Lease {
    /// Makes the job ready, unless it is held: its holder checks for more work itself.
    pub fn enqueue(&mut self, now: Duration) {
        match &mut self.job {
            Some(Job { worker: Some(_), .. }) => {}
            Some(job) => job.ready_at = job.ready_at.min(now),
            None => self.job = Some(Job { worker: None, ready_at: now, takeovers: 0 }),
        }
    }

    /// Claims the job when it is due; with `takes_over` also when its lease has expired.
    pub fn claim(
        &mut self,
        worker: WorkerId,
        takes_over: bool,
        now: Duration,
        lease: Duration,
    ) -> Option<Claimed> {
        let is_free = |job: &Job| job.worker.is_none() || takes_over;
        let job = self.job.as_mut().filter(|job| job.ready_at <= now && is_free(job))?;
        let taken_over = job.worker.is_some();
        let takeovers = job.takeovers + i32::from(taken_over);
        *job = Job { worker: Some(worker), ready_at: now + lease, takeovers };
        self.epoch += 1;
        Some(Claimed { epoch: self.epoch, taken_over, takeovers })
    }

    /// Extends the lease; `None` when it is not this worker's.
    pub fn renew(&mut self, worker: WorkerId, now: Duration, lease: Duration) -> Option<i64> {
        self.held(worker)?.ready_at = now + lease;
        Some(self.epoch)
    }

    /// Continues under a new epoch; `None` when the lease is not this worker's.
    pub fn refence(&mut self, worker: WorkerId, now: Duration, lease: Duration) -> Option<i64> {
        self.held(worker)?.ready_at = now + lease;
        self.epoch += 1;
        Some(self.epoch)
    }

    /// Reads the lease without extending it.
    pub fn watch(&mut self, worker: WorkerId) -> Option<i64> {
        self.held(worker)?;
        Some(self.epoch)
    }

    /// Releases the job, to be claimed after `delay`.
    pub fn release(&mut self, worker: WorkerId, now: Duration, delay: Duration) {
        if let Some(job) = self.held(worker) {
            (job.worker, job.ready_at) = (None, now + delay);
        }
    }

    /// Releases the job until `ready_at`: its turn waits, and nobody failed.
    pub fn wait(&mut self, worker: WorkerId, ready_at: Duration) {
        if let Some(job) = self.held(worker) {
            *job = Job { worker: None, ready_at, takeovers: 0 };
        }
    }

    /// Finishes the job, or makes it ready again when there is more work.
    pub fn finish(&mut self, worker: WorkerId, now: Duration, more: bool) {
        if self.held(worker).is_some() {
            self.job = more.then_some(Job { worker: None, ready_at: now, takeovers: 0 });
        }
    }

    /// Closes the session: removes the job and fences off all earlier epochs.
    pub fn close(&mut self) {
        self.epoch += 1;
        self.job = None;
    }

    fn held(&mut self, worker: WorkerId) -> Option<&mut Job> {
        self.job.as_mut().filter(|job| job.worker == Some(worker))
    }
}

#[test]
fn a_lease_is_taken_over_only_when_it_is_over_and_never_keeps_its_epoch() {
    let (now, lease) = (Duration::from_secs(10), Duration::from_secs(2));
    let claimed = |epoch, takeovers, taken_over| Some(Claimed { epoch, taken_over, takeovers });
    let mut state = Lease::default();
    assert_eq!(state.claim(1, true, now, lease), None);
    state.enqueue(now);
    assert_eq!(state.claim(1, false, now, lease), claimed(1, 0, false));
    state.enqueue(now);
    assert_eq!(state.claim(2, true, now + lease / 2, lease), None);
    assert_eq!(state.renew(1, now + lease / 2, lease), Some(1));
    assert_eq!(state.claim(2, true, now + lease, lease), None);
    assert_eq!(state.claim(2, false, now + lease * 2, lease), None);
    assert_eq!(state.claim(2, true, now + lease * 2, lease), claimed(2, 1, true));
    assert_eq!(state.renew(1, now + lease * 2, lease), None);
    state.release(1, now, Duration::ZERO);
    assert_eq!(state.watch(2), Some(2));
    assert_eq!((state.refence(1, now, lease), state.refence(2, now, lease)), (None, Some(3)));
    state.release(2, now, lease);
    assert_eq!(state.claim(1, true, now, lease), None);
    assert_eq!(state.claim(1, true, now + lease, lease), claimed(4, 1, false));
    state.finish(1, now, true);
    assert_eq!(state.job, Some(Job { worker: None, ready_at: now, takeovers: 0 }));
    state.close();
    assert_eq!(state, Lease { epoch: 5, job: None });
}
