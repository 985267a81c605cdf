//! A worker process: claims jobs, renews leases, runs turns, drains.
//!
//! The loops of `worker` and `queue` over the simulated database; the turns themselves are run by the real
//! `harness::run`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use sojourn::{
    base::{
        backoff::Backoff,
        limit::{
            self, CLAIM_POLL, CONTROL_INTERVAL, DATABASE_ATTEMPTS_MAX, DRAIN_TIMEOUT, STATEMENT_TIMEOUT,
            TURN_ATTEMPTS_MAX,
        },
    },
    domain::{
        Session, Status, TurnId,
        compaction::CompactionSettings,
        price::{Fee, Price, SandboxPrice, SandboxSize, Tariff},
    },
    harness::{self, Halt, Ports, Signals, TurnModel},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    actors::Group,
    database::Fence,
    journal::{LeasedJournal, away, end_early},
    lease::Claimed,
    model::Provider,
    tools::LeasedTools,
    world::{Away, World},
};

/// Concurrent turns of one process. With two, a frozen process may take over from itself.
const SLOTS: u64 = 2;
/// Pauses before a turn retries an unavailable database.
const DATABASE_BACKOFF: Backoff =
    Backoff { first: limit::DATABASE_BACKOFF.0, longest: limit::DATABASE_BACKOFF.1 };

/// One process; its futures form the group that crashes and freezes together.
pub struct Process {
    world: Arc<World>,
    pub group: Group,
    held: Mutex<Option<Holding>>,
    /// Since when the database has answered without failure.
    answering: Mutex<Option<Instant>>,
    busy: AtomicU64,
    freed: Notify,
    drain: watch::Sender<bool>,
    /// Stops the slots that outlast a drain.
    abort: CancellationToken,
    /// Stops the renewals, after the last lease.
    kept: CancellationToken,
}

struct Holding {
    epoch: i64,
    state: watch::Sender<State>,
}

/// State of a lease, for its holder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    lost: bool,
    cancel_turn: Option<TurnId>,
}

/// A held lease; drop ends its renewals.
struct Held {
    process: Arc<Process>,
    claimed: Claimed,
    state: watch::Receiver<State>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.process.lock().take_if(|holding| holding.epoch == self.claimed.epoch);
        self.process.busy.fetch_sub(1, SeqCst);
        self.process.freed.notify_waiters();
    }
}

impl Process {
    /// Starts a process.
    pub fn start(world: &Arc<World>) -> Arc<Self> {
        let process = Arc::new(Self {
            world: Arc::clone(world),
            group: world.number(),
            held: Mutex::new(None),
            answering: Mutex::new(None),
            busy: AtomicU64::new(0),
            freed: Notify::new(),
            drain: watch::channel(false).0,
            abort: CancellationToken::new(),
            kept: CancellationToken::new(),
        });
        world.stage.enter(Some(process.group), Arc::clone(&process).work());
        world.stage.enter(Some(process.group), Arc::clone(&process).keep());
        process
    }

    /// Starts a drain, as SIGTERM does.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.drain.borrow()
    }

    async fn work(self: Arc<Self>) {
        let mut draining = self.drain.subscribe();
        while !*draining.borrow() {
            self.fill().await;
            tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => {}
                () = self.world.job.notified() => {}
                () = self.freed.notified() => {}
                () = sleep(CLAIM_POLL) => {}
            }
        }
        let idle = async {
            while self.busy.load(SeqCst) > 0 {
                sleep(Duration::from_millis(100)).await;
            }
        };
        if timeout(DRAIN_TIMEOUT, idle).await.is_err() {
            self.abort.cancel();
            // The slots are dropped when they are polled next.
            sleep(Duration::from_millis(1)).await;
        }
        let worker = self.group;
        let _ =
            self.world.ask(move |database, now| database.lease.release(worker, now, Duration::ZERO)).await;
        self.kept.cancel();
    }

    async fn fill(self: &Arc<Self>) {
        while self.busy.load(SeqCst) < SLOTS {
            let (worker, lease) = (self.group, self.world.plan.lease);
            let answering = *self.answering();
            // While the database was unavailable, its holders could not renew either.
            let takes_over = answering.is_some_and(|since| since.elapsed() >= lease);
            let claim =
                self.world.ask(move |database, now| database.lease.claim(worker, takes_over, now, lease));
            let claimed = claim.await;
            self.answered(claimed.is_ok());
            let Ok(Some(claimed)) = claimed else { return };
            let held = self.hold(claimed);
            let (process, abort) = (Arc::clone(self), self.abort.clone());
            self.world.stage.enter(Some(self.group), async move {
                abort.run_until_cancelled(process.slot(held)).await;
            });
        }
    }

    fn hold(self: &Arc<Self>, claimed: Claimed) -> Held {
        let (sender, state) = watch::channel(State::default());
        let before = self.lock().replace(Holding { epoch: claimed.epoch, state: sender });
        // This process let the lease expire and claimed it again: its first holder must stop.
        before.iter().for_each(lose);
        self.busy.fetch_add(1, SeqCst);
        Held { process: Arc::clone(self), claimed, state }
    }

    fn answered(&self, did: bool) {
        let mut answering = self.answering();
        *answering = did.then(|| answering.unwrap_or_else(Instant::now));
    }

    fn answering(&self) -> MutexGuard<'_, Option<Instant>> {
        self.answering.lock().expect("no holder panics")
    }

    /// Renews held leases and reads callers' requests.
    async fn keep(self: Arc<Self>) {
        let lease = self.world.plan.lease;
        let mut ticks = interval(CONTROL_INTERVAL.min(lease / 4));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.kept.cancelled() => return,
                () = self.world.control.notified() => {}
                _ = ticks.tick() => {}
            }
            let renew = renewed.elapsed() >= lease / 3;
            if renew {
                renewed = Instant::now();
            }
            self.tick(renew).await;
        }
    }

    async fn tick(&self, renew: bool) {
        let Some(epoch) = self.lock().as_ref().map(|holding| holding.epoch) else { return };
        let (worker, lease) = (self.group, self.world.plan.lease);
        let answer = self.world.ask(move |database, now| {
            let held =
                if renew { database.lease.renew(worker, now, lease) } else { database.lease.watch(worker) };
            held.map(|epoch| (epoch, database.session.cancel_turn_id))
        });
        let row = timeout(STATEMENT_TIMEOUT, answer).await;
        self.answered(matches!(row, Ok(Ok(_))));
        if let Ok(Ok(row)) = row
            && let Some(holding) = self.lock().as_mut().filter(|holding| holding.epoch == epoch)
        {
            match row {
                // It continues under a new epoch, or is claimed again.
                Some((epoch, _)) if epoch != holding.epoch => {}
                Some((_, cancel_turn)) => {
                    let state = State { lost: false, cancel_turn };
                    holding.state.send_if_modified(|held| std::mem::replace(held, state) != state);
                }
                None => lose(holding),
            }
        }
    }

    async fn slot(self: Arc<Self>, mut held: Held) {
        let mut known = None;
        let mut failures = 0;
        loop {
            match self.run_next(&held, &mut known).await {
                Ok(true) => return self.world.notification(&self.world.job),
                Ok(false) => return self.put_back(&mut held, None).await,
                Err(Halt::Moved) => {}
                Err(Halt::Stale) => return,
                Err(Halt::Drained) => return self.put_back(&mut held, Some(Duration::ZERO)).await,
                Err(Halt::Wait(delay)) => return self.put_back(&mut held, Some(delay)).await,
                Err(Halt::Unavailable(_)) => {
                    if !self.resume(&mut held, &mut failures).await {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for an unavailable database and continues under a new epoch, as `worker::slot` does. Returns
    /// whether it continues.
    async fn resume(&self, held: &mut Held, failures: &mut u32) -> bool {
        loop {
            *failures += 1;
            if self.wait_or_lose(held, *failures).await {
                return false;
            }
            if *failures >= DATABASE_ATTEMPTS_MAX || self.is_draining() {
                self.put_back(held, Some(Duration::ZERO)).await;
                return false;
            }
            if held.state.borrow().lost {
                return false;
            }
            let (worker, lease) = (self.group, self.world.plan.lease);
            match self.world.ask(move |database, now| database.lease.refence(worker, now, lease)).await {
                Ok(Some(epoch)) => {
                    let old = std::mem::replace(&mut held.claimed.epoch, epoch);
                    if let Some(holding) = self.lock().as_mut().filter(|holding| holding.epoch == old) {
                        holding.epoch = epoch;
                    }
                    return true;
                }
                Ok(None) => return false,
                Err(Away) => {}
            }
        }
    }

    /// Waits before the database is called again; returns whether the lease was lost.
    async fn wait_or_lose(&self, held: &mut Held, failures: u32) -> bool {
        tokio::select! {
            biased;
            _ = held.state.wait_for(|state| state.lost) => true,
            () = sleep(DATABASE_BACKOFF.delay(failures, &self.world.origin)) => false,
        }
    }

    /// Releases the job for a later time, or finishes it.
    async fn put_back(&self, held: &mut Held, delay: Option<Duration>) {
        let worker = self.group;
        for attempt in 1..DATABASE_ATTEMPTS_MAX {
            let put = self.world.ask(move |database, now| {
                let row = &database.session;
                // A cancellation that arrived while the job was held woke no worker.
                let is_canceled = row.cancel_turn_id.is_some();
                let more = row.queued.is_some() || row.running.is_some();
                match delay {
                    Some(delay) => {
                        let delay = if is_canceled { Duration::ZERO } else { delay };
                        database.lease.release(worker, now, delay);
                    }
                    None => database.lease.finish(worker, now, more),
                }
            });
            if put.await.is_ok() || self.wait_or_lose(held, attempt).await {
                break;
            }
        }
        self.world.notification(&self.world.job);
    }

    /// Runs pending work; returns whether there was any.
    async fn run_next(&self, held: &Held, known: &mut Option<(TurnId, i32)>) -> Result<bool, Halt> {
        let session = self.world.ask(|database, _| database.session.clone()).await.map_err(away)?;
        let Some(next) = pending(&session, held.claimed) else { return Ok(false) };
        // Continuing within the lease is the same attempt.
        let (turn, attempt) = *known.insert(known.filter(|(turn, _)| *turn == next.0).unwrap_or(next));
        self.run_turn(held, turn, attempt).await.map(|()| true)
    }

    fn model(&self, number: usize) -> TurnModel {
        TurnModel {
            model: Arc::new(Provider { world: Arc::clone(&self.world) }),
            name: format!("m-{number}"),
            options: Default::default(),
            window: self.world.plan.window.map(|window| window / number as u64),
            tariff: tariff(),
        }
    }

    async fn run_turn(&self, held: &Held, turn: TurnId, attempt: i32) -> Result<(), Halt> {
        let fence = Fence { epoch: held.claimed.epoch, worker: self.group, turn };
        let journal = LeasedJournal { world: Arc::clone(&self.world), fence };
        if held.claimed.takeovers >= TURN_ATTEMPTS_MAX {
            return end_early(&journal).await;
        }
        let tools = LeasedTools::new(Arc::clone(&self.world), fence);
        let (sender, signals) = watch::channel(Signals::default());
        let ports = Ports { journal: &journal, tools: &tools, origin: &self.world.origin, signals };
        let turn = harness::Turn {
            id: turn,
            attempt,
            models: (1..=self.world.plan.models).map(|number| self.model(number)).collect(),
            prompt: "You repair things.".to_owned(),
            loops: self.world.plan.loops,
            output_repairs: self.world.plan.output_repairs,
            compaction: CompactionSettings {
                auto: Some(self.world.plan.compacts),
                threshold: Some(self.world.plan.threshold),
                ..CompactionSettings::default()
            },
            agent_seq: 0,
            size: SandboxSize { cpu_millis: 2_000, memory_bytes: 2 << 30 },
            is_unbound: true,
        };
        let id = turn.id;
        let (session, fold) = self.world.fold().await.map_err(away)?;
        let fold = tokio::select! {
            biased;
            ended = harness::run(turn, ports, session, fold) => ended?,
            () = follow(held.state.clone(), self.drain.subscribe(), id, sender) => unreachable!("followed forever"),
        };
        self.world.keep_fold(&fold).await;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Holding>> {
        self.held.lock().expect("no holder panics")
    }
}

fn lose(holding: &Holding) {
    holding.state.send_if_modified(|state| !std::mem::replace(&mut state.lost, true));
}

/// Prices, so that the fold has costs to sum.
fn tariff() -> Tariff {
    let price = Price { input: 3_000_000, output: 15_000_000, ..Price::default() };
    Tariff {
        model: Some((price, "simulated".to_owned())),
        sandbox: SandboxPrice { cpu_hour: 50_400, gib_hour: 16_200 },
        fee: Fee { turn: 7 },
    }
}

/// The turn to work on, and its attempt.
fn pending(session: &Session, claimed: Claimed) -> Option<(TurnId, i32)> {
    match (&session.running, &session.queued) {
        _ if session.status == Status::Archived => None,
        (Some(running), _) => Some((running.id, running.attempt + i32::from(claimed.taken_over))),
        (None, Some(queued)) => Some((queued.id, queued.attempt + 1)),
        (None, None) => None,
    }
}

/// State of the lease and the drain, in the form that the harness reads.
async fn follow(
    mut lease: watch::Receiver<State>,
    mut draining: watch::Receiver<bool>,
    turn: TurnId,
    sender: watch::Sender<Signals>,
) {
    loop {
        let state = *lease.borrow_and_update();
        let signals = Signals {
            lost: state.lost,
            cancel: state.cancel_turn == Some(turn),
            drain: *draining.borrow_and_update(),
        };
        sender.send_if_modified(|held| std::mem::replace(held, signals) != signals);
        let changed = tokio::select! {
            biased;
            changed = lease.changed() => changed.is_ok(),
            changed = draining.changed() => changed.is_ok(),
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }
}
