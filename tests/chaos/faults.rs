//! The faults: each kind in a lane of its own, so that they fall together.

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
    plan::{Dice, Plan},
    processes::{Fleet, Role, Slot},
};

/// What hits the deployment, and how often it has.
pub struct Faults {
    pub plan: Plan,
    pub cluster: Arc<Cluster>,
    pub fleet: Arc<Fleet>,
    pub violations: Arc<Violations>,
    /// Time is up: what is not done stays undone.
    pub late: AtomicBool,
    pub counts: Counts,
}

/// Faults that happened.
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

/// How long a process may take to be up again, the database included.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How often a run says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

impl Faults {
    /// All lanes, until each has done its part.
    pub async fn run(&self, dice: &Dice) {
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

    /// Says how far the run is, for as long as it lasts.
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
                // The database was away for the harness, too.
                Err(error) => {
                    eprintln!("a fault was not done: {error:#}");
                    sleep(Duration::from_millis(300)).await;
                }
            }
        }
    }

    async fn kill(&self, dice: &Dice) -> anyhow::Result<bool> {
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
                // Half of them take the statement that they wait for with them.
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

    async fn freeze(&self, dice: &Dice) -> anyhow::Result<bool> {
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
        // Thawed it is slow to lose what it held: that is the fault, too.
        self.fleet.note(process);
        if slot.has_ended() {
            self.bring_up(&mut slot).await;
        }
        Ok(true)
    }

    async fn restart_postgres(&self, dice: &Dice) -> anyhow::Result<bool> {
        sleep(dice.millis(4_000, 12_000)).await;
        self.fleet.note(0);
        let outage = self.cluster.crash().await?;
        self.fleet.note(0);
        let outage_ms = u32::try_from(outage.as_millis()).unwrap_or(u32::MAX);
        self.counts.longest_outage_ms.fetch_max(outage_ms, Ordering::Relaxed);
        Ok(true)
    }

    async fn drain(&self, dice: &Dice) -> anyhow::Result<bool> {
        sleep(dice.millis(1_000, 6_000)).await;
        let role = if dice.once_in(4) { Role::Api } else { Role::Worker };
        let Some(mut slot) = self.pick(role, dice) else { return Ok(false) };
        match slot.drain().await {
            Ok(took) => {
                let took_ms = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
                self.counts.slowest_drain_ms.fetch_max(took_ms, Ordering::Relaxed);
            }
            Err(error) => self.violations.note(format!("{error:#}; {}", slot.last_words())),
        }
        self.bring_up(&mut slot).await;
        Ok(true)
    }

    /// Starts again what ended by itself, which nothing should.
    pub async fn supervise(&self) {
        loop {
            for slot in &self.fleet.slots {
                let Ok(mut slot) = slot.try_lock() else { continue };
                if slot.has_ended() {
                    self.violations.note(format!("a process ended by itself: {}", slot.last_words()));
                    self.bring_up(&mut slot).await;
                }
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Starts a process, again while the database is away.
    pub async fn bring_up(&self, slot: &mut Slot) {
        let until = Instant::now() + START_PATIENCE;
        while let Err(error) = slot.start(|process| self.cluster.urls(process)).await {
            if Instant::now() > until {
                self.violations.note(format!("not up after {START_PATIENCE:?}: {error:#}"));
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// A process of the role that nothing else is being done to.
    fn pick(&self, role: Role, dice: &Dice) -> Option<MutexGuard<'_, Slot>> {
        let count = self.fleet.slots.len();
        let start = dice.below(count as u64) as usize;
        let slots = (0..count).map(|step| &self.fleet.slots[(start + step) % count]);
        slots.filter_map(|slot| slot.try_lock().ok()).find(|slot| slot.role == role)
    }
}
