//! State shared by all actors of one simulated run.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use sojourn::{
    base::{Clock, Origin, Timestamp, entropy::SeededEntropy},
    domain::{custom_tool::OnExpiry, turn_settings::LoopSettings},
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep},
};

use super::{actors::Stage, chance::Chance, database::Database, sandboxes::Sandboxes};

/// A run, determined by its seed.
pub struct World {
    pub chance: Chance,
    pub origin: Origin,
    pub plan: Plan,
    pub stage: Stage,
    pub sandboxes: Sandboxes,
    database: Mutex<Option<Database>>,
    began: Instant,
    /// From here on nothing fails.
    calm: AtomicBool,
    numbers: AtomicU64,
    /// Notification that a job may be ready; notifications may get lost.
    pub job: Notify,
    /// Notification that a caller changed a held job.
    pub control: Notify,
}

/// Parameters of a run. A fault happens once in this many chances, and never for 0.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lease: Duration,
    pub workers_max: u64,
    pub provider: &'static str,
    /// Every request is encoded for its provider and validated by the strict fake.
    pub is_strict: bool,
    /// Factor on the duration of commands and responses.
    pub pace: u32,
    /// Worker processes crash, freeze, drain.
    pub processes_fail: bool,
    /// Longest time between two faults.
    pub trouble_every_ms: u64,
    pub database_fails_one_in: u64,
    pub model_fails_one_in: u64,
    pub sandboxes_die_one_in: u64,
    /// Time in which a caller must answer a call of its tool.
    pub expires_seconds: u64,
    pub on_expiry: OnExpiry,
    /// What happens when the model makes the same calls again and again.
    pub loops: LoopSettings,
    /// Rejected outputs of a turn before it ends, if turns need an output.
    pub output_repairs: Option<u32>,
    /// Number of its models: the first one, and those that are called while it is not available.
    pub models: usize,
    /// Whether a long history is summarized, from which share of the window on, and the window in tokens.
    pub compacts: bool,
    pub threshold: f64,
    pub window: Option<u64>,
}

/// The database did not answer; the statement may have been executed.
#[derive(Clone, Copy, Debug)]
pub struct Away;

/// The paused clock of the runtime, in the form that the service reads.
struct PausedClock {
    began: Instant,
}

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        // 2026-11-01T00:00:00Z; any fixed time works.
        let start = Timestamp::from_unix_timestamp(1_793_491_200).expect("a time in range");
        start + self.began.elapsed()
    }
}

impl World {
    pub fn new(seed: u64, plan: impl FnOnce(&Chance) -> Plan) -> Self {
        let chance = Chance::new(seed);
        let began = Instant::now();
        let entropy = SeededEntropy::new(seed);
        Self {
            plan: plan(&chance),
            chance,
            origin: Origin::new(Arc::new(PausedClock { began }), Arc::new(entropy)),
            stage: Stage::default(),
            sandboxes: Sandboxes::default(),
            database: Mutex::new(None),
            began,
            calm: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
            job: Notify::new(),
            control: Notify::new(),
        }
    }

    /// Time since the start of the run: the database's clock.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A unique number, from 1.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, SeqCst) + 1
    }

    pub fn open(&self, database: Database) {
        *self.database.lock().expect("no statement panics") = Some(database);
    }

    /// Reads the tables immediately and without faults, for checks.
    pub fn look<T>(&self, at: impl FnOnce(&mut Database) -> T) -> T {
        let mut database: MutexGuard<'_, _> = self.database.lock().expect("no statement panics");
        at(database.as_mut().expect("the database is open"))
    }

    /// Sends a statement. Dropping the future does not recall it: it may still be executed later, like that
    /// of a process that was killed after sending it.
    pub async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        statement: impl FnOnce(&mut Database, Duration) -> T + Send + 'static,
    ) -> Result<T, Away> {
        let (reply, answer) = oneshot::channel();
        let world = Arc::clone(self);
        let execute = move || world.look(|database| statement(database, world.now()));
        let world = Arc::clone(self);
        self.stage.enter(None, async move {
            world.latency().await;
            if !world.mishap(world.plan.database_fails_one_in) {
                let done = execute();
                world.latency().await;
                // The response may be lost all the same.
                if !world.mishap(world.plan.database_fails_one_in) {
                    let _ = reply.send(done);
                }
            } else if world.chance.one_in(2) {
                // The connection is lost, and the server has not noticed yet.
                drop(reply);
                sleep(world.chance.millis(0, 4_000)).await;
                execute();
            }
        });
        answer.await.map_err(|_| Away)
    }

    /// Whether a fault happens now.
    pub fn mishap(&self, one_in: u64) -> bool {
        !self.is_calm() && self.chance.one_in(one_in)
    }

    pub fn is_calm(&self) -> bool {
        self.calm.load(SeqCst)
    }

    pub fn calm_down(&self) {
        self.calm.store(true, SeqCst);
    }

    /// Sends a notification, or loses it.
    pub fn notification(&self, notification: &Notify) {
        if self.chance.one_in(2) {
            notification.notify_waiters();
        }
    }

    /// Duration of a command or a model call: mostly shorter than a lease.
    pub fn duration(&self) -> Duration {
        let usual = match self.chance.below(8) {
            0 => Duration::ZERO,
            1..7 => self.chance.millis(1, 2_000),
            _ => self.chance.millis(2_000, 12_000),
        };
        usual * self.plan.pace
    }

    /// Network latency: often none, sometimes long.
    pub async fn latency(&self) {
        match self.chance.below(16) {
            0..8 => {}
            8..15 => sleep(self.chance.millis(1, 5)).await,
            _ => sleep(self.chance.millis(10, 400)).await,
        }
    }
}

/// Adds an actor that nothing can stop.
pub fn enter(world: &Arc<World>, life: impl Future<Output = ()> + Send + 'static) {
    world.stage.enter(None, life);
}
