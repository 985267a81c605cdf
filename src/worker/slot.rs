//! One job under one lease: a turn from its claim to its yield, or a clean-up.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Mutex, watch};

use super::{
    Worker,
    egress_attachment::{Allowed, EgressAttachment},
    end_early::{RECOVERY_EXHAUSTED, end_early},
    leased_sandbox::LeasedSandbox,
    operate::Operator,
    ports::{LeasedJournal, LeasedTools},
    preflight::{self, Refusal},
    rootfs::{self, RootfsStatus, Unseen},
    sandbox_spec::{self, SandboxSpec},
    spans::{self, TracedModel, TracedTools},
};
use tracing::Instrument;

use crate::{
    base::{
        SecretString,
        backoff::Backoff,
        limit::{self, RECORD_ATTEMPTS_MAX, TURN_ATTEMPTS_MAX},
    },
    domain::{
        OrgId, Session, Status, TurnId,
        price::{SandboxSize, Tariff},
        session::Hold,
        source::told,
    },
    harness::{self, Halt, Model, Signals},
    journal::Writer,
    model::{Connection, ModelName, NoModel},
    queue::{Lease, State},
    store::{
        self,
        agent::Revision,
        job::{Claimed, Kind},
        notification::Notification,
    },
};

/// Works on a job. Returns what became of it, in a word for the log.
pub(super) async fn run(
    worker: &Worker,
    lease: Lease,
    draining: watch::Receiver<bool>,
) -> Result<&'static str, store::Error> {
    match lease.claimed().kind {
        Kind::Cleanup => worker.clean_up(lease).await,
        Kind::Rest => worker.look_after(lease).await,
        Kind::Operate => worker.operate(lease, draining).await,
        Kind::Turn => run_turns(worker, lease, draining).await,
    }
}

async fn run_turns(
    worker: &Worker,
    mut lease: Lease,
    draining: watch::Receiver<bool>,
) -> Result<&'static str, store::Error> {
    let claimed = *lease.claimed();
    let mut attempts = Attempts { claimed, known: None };
    let mut failures = 0;
    loop {
        match run_next(worker, &lease, &mut attempts, &draining).await {
            Ok(Some(())) => {
                // The end of the turn gave the job back; more input may wait.
                worker.notifications.send(Notification::Job);
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
                worker.notifications.send(Notification::Job);
                return Ok("handed back");
            }
            Err(Halt::Wait(delay)) => {
                put_back(worker, &lease, Some(delay)).await?;
                return Ok("waits");
            }
            Err(Halt::Unavailable(reason)) => {
                tracing::warn!(session.id = %claimed.session, failures, reason, "a turn cannot go on yet");
                if let Some(outcome) = resume(worker, &mut lease, &mut failures, &draining).await? {
                    return Ok(outcome);
                }
            }
        }
    }
}

/// Waits for a record that is away and goes on under a new epoch. Returns what became
/// of the job when it does not go on.
///
/// The lease outlives a restart of the database: as long as nobody else has it, going
/// on from the log costs no attempt. But what was sent and not answered may still be
/// executed, so the log is read again only when nothing of that can enter it.
async fn resume(
    worker: &Worker,
    lease: &mut Lease,
    failures: &mut u32,
    draining: &watch::Receiver<bool>,
) -> Result<Option<&'static str>, store::Error> {
    loop {
        *failures += 1;
        let delay = RECORD_BACKOFF.delay(*failures, worker.journal.origin());
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = lease.lost() => return Ok(Some("the lease was lost")),
        }
        if *draining.borrow() || *failures >= RECORD_ATTEMPTS_MAX {
            lease.release(delay).await?;
            return Ok(Some("given back"));
        }
        match lease.refence().await {
            Ok(true) => return Ok(None),
            Ok(false) => return Ok(Some("the lease was lost")),
            Err(store::Error::Unavailable { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

const RECORD_BACKOFF: Backoff = Backoff { first: limit::RECORD_BACKOFF.0, longest: limit::RECORD_BACKOFF.1 };

/// Gives a job back for a later time, or ends it; asks the database again while that
/// is away, because a lease that runs out counts as a crash.
async fn put_back(worker: &Worker, lease: &Lease, delay: Option<Duration>) -> Result<(), store::Error> {
    for attempt in 1.. {
        let answered = match delay {
            Some(delay) => lease.release(delay).await,
            None => lease.finish().await,
        };
        match answered {
            Err(store::Error::Unavailable { .. }) if attempt < RECORD_ATTEMPTS_MAX => {}
            Ok(()) | Err(_) => return answered,
        }
        tokio::select! {
            () = tokio::time::sleep(RECORD_BACKOFF.delay(attempt, worker.journal.origin())) => {}
            () = lease.lost() => return Ok(()),
        }
    }
    unreachable!("the loop above only ends by returning")
}

/// Which attempt of a turn a lease is.
struct Attempts {
    claimed: Claimed,
    /// The turn that it was told for: going on within the lease is the same attempt.
    known: Option<(TurnId, i32)>,
}

impl Attempts {
    /// The turn to work on and its attempt; `None` when nothing is pending.
    fn of(&mut self, session: &Session) -> Option<(TurnId, i32)> {
        let (turn, attempt) = match (&session.running, &session.queued) {
            _ if session.status == Status::Archived => return None,
            (Some(running), _) => (running.id, running.attempt + i32::from(self.claimed.taken_over)),
            (None, Some(queued)) => (queued.id, 1),
            (None, None) => return None,
        };
        let known = self.known.filter(|(known, _)| *known == turn);
        self.known = known.or(Some((turn, attempt)));
        self.known
    }
}

/// Runs what is pending. Returns `None` when nothing is.
async fn run_next(
    worker: &Worker,
    lease: &Lease,
    attempts: &mut Attempts,
    draining: &watch::Receiver<bool>,
) -> Result<Option<()>, Halt> {
    let Claimed { org, session, takeovers, .. } = attempts.claimed;
    let session = worker.store.load_session(org, session).await.map_err(unavailable)?;
    let Some((turn, attempt)) = attempts.of(&session) else { return Ok(None) };
    if session.hold == Some(Hold::Paused) && session.cancel_turn_id.is_none() {
        return Err(Halt::Drained);
    }
    let writer = worker.journal.writer(lease.fence(), Some(turn));
    // A worker that dies before it has written anything leaves the attempt as it was.
    if attempt.max(takeovers) > TURN_ATTEMPTS_MAX {
        let message =
            format!("the turn was interrupted {TURN_ATTEMPTS_MAX} times; steer the session to try again");
        return end_early(worker, &writer, turn, Refusal::error(RECOVERY_EXHAUSTED, message)).await.map(Some);
    }
    match rootfs::check(worker, lease.fence(), &session).await {
        Ok(RootfsStatus::Ready) => {}
        // Whoever canceled it is not made to wait.
        Ok(RootfsStatus::Waits) if session.cancel_turn_id == Some(turn) => {}
        Ok(RootfsStatus::Waits) => return Err(Halt::Wait(limit::ROOTFS_POLL)),
        Ok(RootfsStatus::Failed(message)) => {
            let refusal = Refusal::error(rootfs::BUILD_FAILED, message);
            return end_early(worker, &writer, turn, refusal).await.map(Some);
        }
        Err(Unseen::Stale) => return Err(Halt::Stale),
        Err(Unseen::Away(reason)) => return Err(Halt::Unavailable(reason)),
    }
    run_turn(worker, lease, &session, writer, (turn, attempt), draining).await.map(Some)
}

async fn run_turn(
    worker: &Worker,
    lease: &Lease,
    session: &Session,
    writer: Writer,
    (turn, attempt): (TurnId, i32),
    draining: &watch::Receiver<bool>,
) -> Result<(), Halt> {
    // One round trip beside the other: the request to the model leaves the sooner.
    let prepared = prepare(worker, lease.fence().org, session, turn, attempt);
    let (prepared, log) = tokio::join!(prepared, writer.cached_log());
    let log = log.map_err(|error| Halt::Unavailable(error.to_string()))?;
    let prepared = match prepared? {
        Ok(prepared) => prepared,
        Err(refusal) => return end_early(worker, &writer, turn, refusal).await,
    };
    let Prepared { mut turn, tools, is_free, spec, allowed } = prepared;
    turn.model = Arc::new(TracedModel(turn.model));
    let signals = signals(lease.state(), draining.clone(), turn.id);
    let egress =
        EgressAttachment::new(worker.network.clone(), writer.clone(), worker.journal.origin(), allowed);
    let egress = Arc::new(egress);
    let sandbox = Arc::new(LeasedSandbox::new(worker.clone(), writer.clone(), Arc::clone(&egress), spec));
    let leased = LeasedTools::new(worker.catalogue.clone(), Arc::clone(&sandbox), tools.as_deref());
    let operator = Operator {
        worker,
        writer: writer.clone(),
        sandbox,
        session,
        tariff: turn.tariff.clone(),
        size: turn.size,
        lease: lease.state(),
        reserved: Mutex::default(),
        begun: Mutex::default(),
    };
    let tools = TracedTools(&leased);
    let journal = LeasedJournal::new(writer, session.clone(), log, Arc::clone(&egress), is_free);
    let origin = worker.journal.origin();
    let ports =
        harness::Ports { journal: &journal, tools: &tools, origin, signals: signals.receiver.clone() };
    let span = spans::turn(session, &turn);
    let ended = tokio::select! {
        ended = harness::run(turn, ports).instrument(span) => ended,
        () = signals.follow() => unreachable!("signals are followed for ever"),
        () = egress.run() => unreachable!("a way out is served for ever"),
        () = operator.serve_beside_a_turn() => unreachable!("callers are served for ever"),
    };
    if matches!(ended, Err(Halt::Stale)) {
        operator.pay_late().await;
    }
    ended
}

/// The lease's state and the drain, as the harness reads them.
struct Follow {
    lease: watch::Receiver<State>,
    draining: watch::Receiver<bool>,
    turn: TurnId,
    sender: watch::Sender<Signals>,
    receiver: watch::Receiver<Signals>,
}

fn signals(lease: watch::Receiver<State>, draining: watch::Receiver<bool>, turn: TurnId) -> Follow {
    let (sender, receiver) = watch::channel(Signals::default());
    Follow { lease, draining, turn, sender, receiver }
}

impl Follow {
    async fn follow(&self) {
        let (mut lease, mut draining) = (self.lease.clone(), self.draining.clone());
        loop {
            let state = *lease.borrow_and_update();
            let signals = Signals {
                lost: state.lost,
                cancel: state.cancel_turn == Some(self.turn),
                // A pause too lets the turn come to its next checkpoint, and go on from there.
                drain: *draining.borrow_and_update() || state.is_paused,
            };
            self.sender.send_if_modified(|held| std::mem::replace(held, signals) != signals);
            let changed = async {
                tokio::select! {
                    changed = lease.changed() => changed.is_ok(),
                    changed = draining.changed() => changed.is_ok(),
                }
            };
            if !changed.await {
                // The lease table is gone with the process; nothing more will come.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A turn that may start.
struct Prepared {
    turn: harness::Turn,
    tools: Option<Vec<String>>,
    is_free: bool,
    spec: SandboxSpec,
    allowed: Allowed,
}

/// What the turn is run with, or why it cannot start.
async fn prepare(
    worker: &Worker,
    org: OrgId,
    session: &Session,
    turn: TurnId,
    attempt: i32,
) -> Result<Result<Prepared, Refusal>, Halt> {
    let Some(snapshot) = &session.created.agent_snapshot else {
        return Ok(Err(Refusal::error("no_agent", "the session has no agent")));
    };
    let credential = async {
        match session.created.credential_id {
            None => Ok(None),
            Some(credential) => worker.store.open_credential(org, credential).await.map(Some),
        }
    };
    let revision = worker.store.load_revision(org, snapshot.revision_id);
    let (checked, revision, credential) =
        tokio::join!(preflight::check(worker, org, session), revision, credential);
    let checked = match checked? {
        Ok(checked) => checked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let revision: Revision = revision.map_err(unavailable)?;
    let name: ModelName = match snapshot.model.parse() {
        Ok(name) => name,
        Err(NoModel::BadName(reason) | NoModel::BadCredential(reason)) => {
            return Ok(Err(Refusal::error("model_unknown", reason)));
        }
        Err(NoModel::NoCredential { provider }) => {
            return Ok(Err(Refusal::rejected("no_credential", provider)));
        }
    };
    let credential = match credential {
        Ok(open) => open.map(connection),
        Err(store::Error::NotFound) => {
            let message = "the credential that the session pinned was deleted";
            return Ok(Err(Refusal {
                rejects: session.running.is_none(),
                ..Refusal::error("no_credential", message)
            }));
        }
        Err(error) => return Err(unavailable(error)),
    };
    let model: Arc<dyn Model> = match worker.providers.model(&name, credential.as_ref()) {
        Ok(model) => model,
        Err(NoModel::BadName(reason)) => return Ok(Err(Refusal::error("model_unknown", reason))),
        Err(error @ (NoModel::NoCredential { .. } | NoModel::BadCredential(_))) => {
            return Ok(Err(Refusal::error("no_credential", error.to_string())));
        }
    };
    let (spec, allowed) = match sandbox_spec::read(worker, org, session).await.map_err(unavailable)? {
        Ok(sandbox_spec) => sandbox_spec,
        Err((code, message)) => return Ok(Err(Refusal::error(code, message))),
    };
    let size = &spec.limits;
    let turn = harness::Turn {
        id: turn,
        attempt,
        objects: name.provider == "scripted",
        model,
        model_name: name.model,
        prompt: revision.prompt + &told(&session.created.sources),
        options: snapshot.model_options.clone(),
        tariff: Tariff::of(&snapshot.model, checked.prices.as_ref()),
        size: SandboxSize { cpu_millis: size.cpu_millis, memory_bytes: size.memory_bytes },
    };
    Ok(Ok(Prepared { turn, tools: snapshot.tools.clone(), is_free: checked.is_free, spec, allowed }))
}

fn connection(open: store::credential::OpenCredential) -> Connection {
    let key: SecretString = open.key;
    Connection { provider: open.provider, base_url: open.base_url.and_then(|url| url.parse().ok()), key }
}

pub(super) fn unavailable(error: store::Error) -> Halt {
    Halt::Unavailable(error.to_string())
}
