//! Faults of processes: each kind in its own lane, so that faults overlap.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    sync::{MutexGuard, RwLock},
    time::{Instant, sleep},
};

use crate::{
    client::Violations,
    cluster::{Cluster, Seam},
    plan::{Plan, SeededRng},
    processes::{Fleet, Role, Slot},
};

/// Faults of the deployment, with their counts.
pub struct Faults {
    pub plan: Plan,
    pub cluster: Arc<Cluster>,
    pub fleet: Arc<Fleet>,
    pub violations: Arc<Violations>,
    /// Held for writing while the server restarts, for reading during a dump.
    pub server: RwLock<()>,
    /// Time is up: the remaining faults are skipped.
    pub late: AtomicBool,
    pub counts: Counts,
}

/// Injected faults.
#[derive(Default)]
pub struct Counts {
    pub kills: AtomicU32,
    pub kills_at_seam: AtomicU32,
    pub freezes: AtomicU32,
    pub freezes_at_seam: AtomicU32,
    pub restarts: AtomicU32,
    pub drains: AtomicU32,
    pub starts_together: AtomicU32,
    pub silences: AtomicU32,
    pub dumps: AtomicU32,
    pub events_beside_dumps: AtomicU32,
    pub slowest_drain_ms: AtomicU32,
    pub longest_outage_ms: AtomicU32,
}

/// Time for a process to restart, including the database.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Interval of the progress output.
const PROGRESS: Duration = Duration::from_secs(10);

impl Faults {
    pub fn new(
        plan: &Plan,
        cluster: &Arc<Cluster>,
        fleet: &Arc<Fleet>,
        violations: &Arc<Violations>,
    ) -> Self {
        Self {
            plan: plan.clone(),
            cluster: cluster.clone(),
            fleet: fleet.clone(),
            violations: violations.clone(),
            server: RwLock::default(),
            late: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// Runs all lanes until each has finished.
    pub async fn run(&self, dice: &SeededRng) {
        let (kills, freezes, restarts, drains) = (dice.fork(), dice.fork(), dice.fork(), dice.fork());
        let (together, silences, dumps) = (dice.fork(), dice.fork(), dice.fork());
        tokio::join!(
            self.lane(self.plan.kills, &self.counts.kills, async || self.kill(&kills).await),
            self.lane(self.plan.freezes, &self.counts.freezes, async || self.freeze(&freezes).await),
            self.lane(self.plan.postgres_restarts, &self.counts.restarts, async || {
                self.restart_postgres(&restarts).await
            }),
            self.lane(self.plan.drains, &self.counts.drains, async || self.drain(&drains).await),
            self.lane(self.plan.starts_together, &self.counts.starts_together, async || {
                self.start_together(&together).await
            }),
            self.lane(self.plan.silences, &self.counts.silences, async || self.silence(&silences).await),
            self.lane(self.plan.dumps, &self.counts.dumps, async || self.dump(&dumps).await),
        );
    }

    /// Prints the progress for the duration of the run.
    pub async fn tell(&self) {
        let (plan, counts) = (&self.plan, &self.counts);
        let of = |done: &AtomicU32, wanted: u32| format!("{} of {wanted}", done.load(Ordering::Relaxed));
        loop {
            sleep(PROGRESS).await;
            eprintln!(
                "kills {}, freezes {}, Postgres restarts {}, drains {}, starts {}, silences {}, dumps {}, violations {}",
                of(&counts.kills, plan.kills),
                of(&counts.freezes, plan.freezes),
                of(&counts.restarts, plan.postgres_restarts),
                of(&counts.drains, plan.drains),
                of(&counts.starts_together, plan.starts_together),
                of(&counts.silences, plan.silences),
                of(&counts.dumps, plan.dumps),
                self.violations.all().len(),
            );
        }
    }

    async fn lane(&self, wanted: u32, done: &AtomicU32, fault: impl AsyncFn() -> anyhow::Result<bool>) {
        while done.load(Ordering::Relaxed) < wanted && !self.late.load(Ordering::Relaxed) {
            match fault().await {
                Ok(true) => drop(done.fetch_add(1, Ordering::Relaxed)),
                Ok(false) => sleep(Duration::from_millis(50)).await,
                // The database was unavailable to this program as well.
                Err(error) => {
                    eprintln!("a fault was not injected: {error:#}");
                    sleep(Duration::from_millis(300)).await;
                }
            }
        }
    }

    async fn kill(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(200, 1_500)).await;
        let role = if dice.once_in(5) { Role::Api } else { Role::Worker };
        let Some(mut slot) = self.pick(role, dice) else { return Ok(false) };
        let process = slot.process;
        let seam = if dice.once_in(2) { Seam::Call } else { Seam::Result };
        let loses = dice.once_in(2);
        let mut at_seam = false;
        if role == Role::Worker && dice.once_in(3) {
            let hit = self.cluster.at_seam(seam, process, async || {
                self.fleet.note(process);
                slot.kill().await;
                // In half of the cases the statement that they wait for is lost, too.
                if loses { self.cluster.lose(seam, process).await } else { Ok(()) }
            });
            at_seam = matches!(hit.await, Ok(Some(_)));
        }
        if at_seam {
            self.counts.kills_at_seam.fetch_add(1, Ordering::Relaxed);
        } else {
            self.fleet.note(process);
            slot.kill().await;
        }
        sleep(dice.millis(0, 500)).await;
        self.bring_up(&mut slot).await;
        Ok(true)
    }

    async fn freeze(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(100, 1_000)).await;
        let Some(mut slot) = self.pick(Role::Worker, dice) else { return Ok(false) };
        let process = slot.process;
        let (mut at_seam, mut fault) = (false, None);
        if dice.once_in(2) {
            let seam = if dice.once_in(4) { Seam::Result } else { Seam::Call };
            let hit = self.cluster.at_seam(seam, process, async || {
                fault = Some(self.fleet.begin(process));
                slot.freeze()
            });
            at_seam = matches!(hit.await, Ok(Some(Ok(()))));
        }
        if at_seam {
            self.counts.freezes_at_seam.fetch_add(1, Ordering::Relaxed);
        } else {
            fault.get_or_insert_with(|| self.fleet.begin(process));
            slot.freeze()?;
        }
        sleep(self.plan.lease() + dice.millis(300, 2_000)).await;
        slot.thaw()?;
        if let Some(fault) = fault {
            self.fleet.end(fault);
        }
        if slot.has_ended() {
            self.bring_up(&mut slot).await;
        }
        Ok(true)
    }

    /// Kills every process and starts all of them at one moment.
    async fn start_together(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(5_000, 15_000)).await;
        // In the order of the slots: nobody else holds one lock and waits for another.
        let mut slots = Vec::new();
        for slot in &self.fleet.slots {
            slots.push(slot.lock().await);
        }
        for slot in &mut slots {
            self.fleet.note(slot.process);
            slot.kill().await;
        }
        join_all(slots.iter_mut().map(|slot| self.bring_up(slot))).await;
        Ok(true)
    }

    async fn drain(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(1_000, 6_000)).await;
        let role = if dice.once_in(4) { Role::Api } else { Role::Worker };
        let Some(mut slot) = self.pick(role, dice) else { return Ok(false) };
        match slot.drain().await {
            Ok(took) => {
                let took_ms = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
                self.counts.slowest_drain_ms.fetch_max(took_ms, Ordering::Relaxed);
            }
            Err(error) => self.violations.note(format!("{error:#}; {}", slot.last_log_lines())),
        }
        self.bring_up(&mut slot).await;
        Ok(true)
    }

    /// Restarts processes that ended by themselves, which none should.
    pub async fn supervise(&self) {
        loop {
            for slot in &self.fleet.slots {
                let Ok(mut slot) = slot.try_lock() else { continue };
                if slot.has_ended() {
                    self.violations.note(format!("a process ended by itself: {}", slot.last_log_lines()));
                    self.bring_up(&mut slot).await;
                }
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Starts a process, with retries while the database is unavailable.
    pub async fn bring_up(&self, slot: &mut Slot) {
        let until = Instant::now() + START_PATIENCE;
        while let Err(error) = slot.start(&self.cluster).await {
            if Instant::now() > until {
                self.violations.note(format!("not started within {START_PATIENCE:?}: {error:#}"));
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// A process of the role without a fault in progress.
    pub fn pick(&self, role: Role, dice: &SeededRng) -> Option<MutexGuard<'_, Slot>> {
        let count = self.fleet.slots.len();
        let start = dice.below(count as u64) as usize;
        let slots = (0..count).map(|step| &self.fleet.slots[(start + step) % count]);
        slots.filter_map(|slot| slot.try_lock().ok()).find(|slot| slot.role == role)
    }
}
