//! Fault injection: each kind of fault in its own lane, so that faults overlap.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::MutexGuard,
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
    pub slowest_drain_ms: AtomicU32,
    pub longest_outage_ms: AtomicU32,
}

/// Time for a process to restart, including the database.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Interval of the progress output.
const PROGRESS: Duration = Duration::from_secs(10);

impl Faults {
    /// Runs all lanes until each has finished.
    pub async fn run(&self, dice: &SeededRng) {
        let (kills, freezes, restarts, drains) = (dice.fork(), dice.fork(), dice.fork(), dice.fork());
        tokio::join!(
            self.lane(self.plan.kills, &self.counts.kills, async || self.kill(&kills).await),
            self.lane(self.plan.freezes, &self.counts.freezes, async || self.freeze(&freezes).await),
            self.lane(self.plan.postgres_restarts, &self.counts.restarts, async || {
                self.restart_postgres(&restarts).await
            }),
            self.lane(self.plan.drains, &self.counts.drains, async || self.drain(&drains).await),
        );
    }

    /// Prints the progress for the duration of the run.
    pub async fn tell(&self) {
        let (plan, counts) = (&self.plan, &self.counts);
        let of = |done: &AtomicU32, wanted: u32| format!("{} of {wanted}", done.load(Ordering::Relaxed));
        loop {
            sleep(PROGRESS).await;
            eprintln!(
                "kills {}, freezes {}, Postgres restarts {}, drains {}, violations {}",
                of(&counts.kills, plan.kills),
                of(&counts.freezes, plan.freezes),
                of(&counts.restarts, plan.postgres_restarts),
                of(&counts.drains, plan.drains),
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
        let mut at_seam = false;
        if dice.once_in(2) {
            let seam = if dice.once_in(4) { Seam::Result } else { Seam::Call };
            let hit = self.cluster.at_seam(seam, process, async || {
                self.fleet.note(process);
                slot.freeze()
            });
            at_seam = matches!(hit.await, Ok(Some(Ok(()))));
        }
        if at_seam {
            self.counts.freezes_at_seam.fetch_add(1, Ordering::Relaxed);
        } else {
            self.fleet.note(process);
            slot.freeze()?;
        }
        sleep(self.plan.lease() + dice.millis(300, 2_000)).await;
        slot.thaw()?;
        // After the thaw it notices the loss of its leases late: that is part of the fault.
        self.fleet.note(process);
        if slot.has_ended() {
            self.bring_up(&mut slot).await;
        }
        Ok(true)
    }

    async fn restart_postgres(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(4_000, 12_000)).await;
        self.fleet.note(0);
        let outage = self.cluster.crash().await?;
        self.fleet.note(0);
        let outage_ms = u32::try_from(outage.as_millis()).unwrap_or(u32::MAX);
        self.counts.longest_outage_ms.fetch_max(outage_ms, Ordering::Relaxed);
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
        while let Err(error) = slot.start(|process| self.cluster.urls(process)).await {
            if Instant::now() > until {
                self.violations.note(format!("not started within {START_PATIENCE:?}: {error:#}"));
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// A process of the role without a fault in progress.
    fn pick(&self, role: Role, dice: &SeededRng) -> Option<MutexGuard<'_, Slot>> {
        let count = self.fleet.slots.len();
        let start = dice.below(count as u64) as usize;
        let slots = (0..count).map(|step| &self.fleet.slots[(start + step) % count]);
        slots.filter_map(|slot| slot.try_lock().ok()).find(|slot| slot.role == role)
    }
}
