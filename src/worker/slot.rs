//! One job under one lease: a turn from its claim to its yield, or a job beside turns.

use std::time::Duration;

use tokio::sync::watch;

use super::Worker;
use crate::{
    base::{
        backoff::Backoff,
        limit::{self, DATABASE_ATTEMPTS_MAX, TURN_ATTEMPTS_MAX},
    },
    domain::{Session, Status, TurnId, session::Hold},
    harness::Halt,
    journal::Writer,
    lifecycle::{self, BUILD_FAILED, RootfsStatus, check_rootfs, lacks_rootfs},
    operation::OperationServer,
    queue::Lease,
    store::{
        self,
        job::{Claimed, Kind},
        notification::Notification,
    },
    turn::{Attempt, KeptDrafts, RECOVERY_EXHAUSTED, Refusal, end_early, unavailable},
};

impl Worker {
    /// Runs a job. Returns its outcome, for the log.
    pub(super) async fn run_job(
        &self,
        lease: Lease,
        draining: watch::Receiver<bool>,
    ) -> Result<&'static str, store::Error> {
        match lease.claimed().kind {
            Kind::Cleanup => self.clean_up(lease).await,
            Kind::Idle => self.attend_idle(lease).await,
            Kind::Operation => self.serve_operations(lease, draining).await,
            Kind::Turn => run_turns(self, lease, draining).await,
        }
    }
}

async fn run_turns(
    worker: &Worker,
    mut lease: Lease,
    draining: watch::Receiver<bool>,
) -> Result<&'static str, store::Error> {
    let claimed = *lease.claimed();
    let mut attempts = Attempts { claimed, known: None, kept: KeptDrafts::default() };
    let mut failures = 0;
    loop {
        match run_next(worker, &lease, &mut attempts, &draining).await {
            Ok(Some(())) => {
                return Ok("the turn ended");
            }
            Ok(None) => {
                put_back(worker, &lease, None).await?;
                return Ok("nothing was pending");
            }
            Err(Halt::Moved) => {}
            Err(Halt::Stale) => return Ok("the lease was lost"),
            Err(Halt::Drained) => {
                lease.release(Duration::ZERO).await?;
                // This worker may be stopping, and then claims no more. Workers that share a node mostly share them all.
                let node = worker.runtime.sandboxes.nodes.reachable().list().first().copied();
                worker.runtime.sandboxes.notifications.send(Notification::Job { node });
                return Ok("released");
            }
            Err(Halt::Wait(delay)) => {
                put_back(worker, &lease, Some(delay)).await?;
                return Ok("waits");
            }
            Err(Halt::Unavailable(reason)) => {
                tracing::warn!(session.id = %claimed.session, failures, reason, "a turn cannot continue; retrying");
                if let Some(outcome) = resume(worker, &mut lease, &mut failures, &draining).await? {
                    attempts.kept.report_lost();
                    return Ok(outcome);
                }
            }
        }
    }
}

/// Waits for an unreachable database and continues under a new epoch. Returns the outcome of the job
/// when it does not continue.
///
/// The lease survives a restart of the database: while no other worker holds it, continuing from the
/// log and the kept events costs no attempt. A statement that was sent and not answered may still be
/// executed, so the log is read only after the new epoch excludes that.
async fn resume(
    worker: &Worker,
    lease: &mut Lease,
    failures: &mut u32,
    draining: &watch::Receiver<bool>,
) -> Result<Option<&'static str>, store::Error> {
    loop {
        *failures += 1;
        let delay = DATABASE_BACKOFF.delay(*failures, worker.runtime.sandboxes.journal.origin());
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = lease.lost() => return Ok(Some("the lease was lost")),
        }
        if *draining.borrow() || *failures >= DATABASE_ATTEMPTS_MAX {
            lease.release(delay).await?;
            return Ok(Some("released"));
        }
        match lease.refence().await {
            Ok(true) => return Ok(None),
            Ok(false) => return Ok(Some("the lease was lost")),
            Err(store::Error::Unavailable { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

const DATABASE_BACKOFF: Backoff =
    Backoff { first: limit::DATABASE_BACKOFF.0, longest: limit::DATABASE_BACKOFF.1 };

/// Releases a job for a later time, or finishes it; retries while the database is unreachable, because
/// a lease that expires counts as a crash.
async fn put_back(worker: &Worker, lease: &Lease, delay: Option<Duration>) -> Result<(), store::Error> {
    for attempt in 1.. {
        let answered = match delay {
            Some(delay) => lease.release(delay).await,
            None => lease.finish().await,
        };
        match answered {
            Err(store::Error::Unavailable { .. }) if attempt < DATABASE_ATTEMPTS_MAX => {}
            Ok(()) | Err(_) => return answered,
        }
        tokio::select! {
            () = tokio::time::sleep(DATABASE_BACKOFF.delay(attempt, worker.runtime.sandboxes.journal.origin())) => {}
            () = lease.lost() => return Ok(()),
        }
    }
    unreachable!("the loop above only ends by returning")
}

/// Attempt numbers of the turns of one lease.
struct Attempts {
    claimed: Claimed,
    /// The last turn with its attempt: continuing within the lease is the same attempt.
    known: Option<(TurnId, i32)>,
    /// Events of the last turn that may not be in the log.
    kept: KeptDrafts,
}

impl Attempts {
    /// The turn to work on and its attempt; `None` when nothing is pending.
    fn of(&mut self, session: &Session) -> Option<(TurnId, i32)> {
        let (turn, attempt) = match (&session.running, &session.queued) {
            _ if session.status == Status::Archived => return None,
            (Some(running), _) => (running.id, running.attempt + i32::from(self.claimed.taken_over)),
            (None, Some(queued)) => (queued.id, queued.attempt + 1),
            (None, None) => return None,
        };
        let known = self.known.filter(|(known, _)| *known == turn);
        self.known = known.or(Some((turn, attempt)));
        self.known
    }
}

/// Runs the pending turn. Returns `None` when there is none.
async fn run_next(
    worker: &Worker,
    lease: &Lease,
    attempts: &mut Attempts,
    draining: &watch::Receiver<bool>,
) -> Result<Option<()>, Halt> {
    let Claimed { org, session, takeovers, .. } = attempts.claimed;
    let session = worker.runtime.sandboxes.store.load_session(org, session).await.map_err(unavailable)?;
    let Some((turn, attempt)) = attempts.of(&session) else { return Ok(None) };
    if session.hold == Some(Hold::Paused) && session.cancel_turn_id.is_none() {
        return Err(Halt::Drained);
    }
    let writer = worker.runtime.sandboxes.journal.writer(lease.fence(), Some(turn));
    let writer = writer.child_of(session.created.parent_session_id);
    match attempts.kept.append(&writer).await? {
        Some(true) => return Ok(Some(())),
        // They changed the session after it was read.
        Some(false) => return Err(Halt::Moved),
        None => {}
    }
    // Not the attempt in the log: a worker that dies before it appends anything does not raise it, and a retry does.
    if takeovers >= TURN_ATTEMPTS_MAX {
        let message =
            format!("the turn was interrupted {TURN_ATTEMPTS_MAX} times; retry it, or send a message");
        return end_early(
            &worker.runtime,
            &writer,
            &session,
            turn,
            Refusal::error(RECOVERY_EXHAUSTED, message),
        )
        .await
        .map(Some);
    }
    // Nothing is built for a turn that may not start.
    if session.running.is_none()
        && lacks_rootfs(&worker.runtime.sandboxes, &session).await
        && let Some(refusal) = worker.runtime.refusal(org, &session).await?
    {
        return end_early(&worker.runtime, &writer, &session, turn, refusal).await.map(Some);
    }
    match check_rootfs(&worker.runtime.sandboxes, lease.fence(), &session).await {
        Ok(RootfsStatus::Ready) => {}
        // A canceled turn does not wait for the build.
        Ok(RootfsStatus::Building) if session.cancel_turn_id == Some(turn) => {}
        Ok(RootfsStatus::Building) => return Err(Halt::Wait(limit::ROOTFS_POLL)),
        Ok(RootfsStatus::Failed(message)) => {
            let refusal = Refusal::error(BUILD_FAILED, message);
            return end_early(&worker.runtime, &writer, &session, turn, refusal).await.map(Some);
        }
        Err(lifecycle::Error::Stale) => return Err(Halt::Stale),
        Err(error) => return Err(Halt::Unavailable(error.to_string())),
    }
    let attempt = Attempt { turn, number: attempt, kept: attempts.kept.clone() };
    run_turn(worker, lease, &session, writer, attempt, draining).await.map(Some)
}

/// Runs a turn, and serves callers' operations beside it.
async fn run_turn(
    worker: &Worker,
    lease: &Lease,
    session: &Session,
    writer: Writer,
    attempt: Attempt,
    draining: &watch::Receiver<bool>,
) -> Result<(), Halt> {
    let runtime = &worker.runtime;
    let prepared = match runtime.prepare(session, &writer, &attempt).await? {
        Ok(prepared) => prepared,
        Err(refusal) => return end_early(runtime, &writer, session, attempt.turn, refusal).await,
    };
    let sandbox = prepared.sandbox();
    let tariff = prepared.tariff().clone();
    let server = OperationServer::new(&runtime.sandboxes, sandbox.clone(), session, tariff, lease.state());
    let started = prepared.started();
    let serve = async {
        started.await;
        server.serve_beside_a_turn().await;
    };
    let ended = tokio::select! {
        ended = prepared.run(runtime, session, lease.state(), draining.clone()) => ended,
        () = sandbox.egress().run() => unreachable!("the egress proxy runs forever"),
        () = serve => unreachable!("operations are served forever"),
    };
    if matches!(ended, Err(Halt::Stale)) {
        server.bill_late().await;
    }
    ended
}
