//! Simulated sandboxes: they outlive workers, and they may die.
//!
//! A sandbox records which calls ran in it and refuses an epoch below the highest that it has seen. It
//! detects an unsafe call that runs twice, or before it is in the log.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use sojourn::domain::{SandboxId, tool::Replay};

use super::database::Database;

/// All sandboxes, and all executions so far.
#[derive(Default)]
pub struct Sandboxes(Mutex<Host>);

#[derive(Default)]
struct Host {
    live: BTreeMap<SandboxId, Live>,
    runs: HashMap<String, u64>,
}

#[derive(Default)]
struct Live {
    epoch: i64,
    /// End time of each call's command, past or future.
    commands: HashMap<String, Duration>,
}

/// Why a sandbox refuses a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refused {
    Gone,
    Stale,
}

impl Sandboxes {
    pub fn create(&self, id: SandboxId, epoch: i64) {
        self.lock().live.insert(id, Live { epoch, ..Live::default() });
    }

    /// Attaches: from here on lower epochs are refused.
    pub fn attach(&self, id: SandboxId, epoch: i64) -> Result<(), Refused> {
        self.lock().held(id, epoch).map(drop)
    }

    /// An immediate operation: a file read or write.
    pub fn touch(&self, id: SandboxId, epoch: i64, call: &str, log: &Database) -> Result<(), Refused> {
        let mut host = self.lock();
        host.held(id, epoch)?;
        host.run(call, log);
        Ok(())
    }

    /// Starts the command of a call, which ends at `ends`; a repeated start has no effect.
    pub fn start(
        &self,
        id: SandboxId,
        epoch: i64,
        call: &str,
        ends: Duration,
        log: &Database,
    ) -> Result<(), Refused> {
        let mut host = self.lock();
        if !host.held(id, epoch)?.commands.contains_key(call) {
            host.run(call, log);
            host.held(id, epoch)?.commands.insert(call.to_owned(), ends);
        }
        Ok(())
    }

    /// A call that runs at a server outside, which knows nothing of epochs.
    /// `round`: how often the server has asked.
    pub fn run_outside(&self, call: &str, round: u32, log: &Database) {
        assert!(log.ledger.is_started(call), "{call} was sent before its start was in the log");
        let mut host = self.lock();
        let runs = host.runs.entry(format!("{call}/{round}")).or_default();
        *runs += 1;
        assert_eq!(*runs, 1, "{call} was sent again after {round} questions");
    }

    /// End time of a call's command; `None` when it was never started.
    pub fn ends(&self, id: SandboxId, epoch: i64, call: &str) -> Result<Option<Duration>, Refused> {
        Ok(self.lock().held(id, epoch)?.commands.get(call).copied())
    }

    /// Kills the command of a call.
    pub fn kill(&self, id: SandboxId, epoch: i64, call: &str, now: Duration) -> Result<(), Refused> {
        if let Some(ends) = self.lock().held(id, epoch)?.commands.get_mut(call) {
            *ends = now.min(*ends);
        }
        Ok(())
    }

    /// The oldest sandbox dies with everything that runs in it.
    pub fn kill_oldest(&self) {
        self.lock().live.pop_first();
    }

    fn lock(&self) -> MutexGuard<'_, Host> {
        self.0.lock().expect("no sandbox panics")
    }
}

impl Host {
    fn held(&mut self, id: SandboxId, epoch: i64) -> Result<&mut Live, Refused> {
        let live = self.live.get_mut(&id).ok_or(Refused::Gone)?;
        if epoch < live.epoch {
            return Err(Refused::Stale);
        }
        live.epoch = epoch;
        Ok(live)
    }

    fn run(&mut self, call: &str, log: &Database) {
        let runs = self.runs.entry(call.to_owned()).or_default();
        *runs += 1;
        let replay = log.ledger.replay(call);
        assert!(replay.is_some(), "{call} ran before it was in the log");
        assert!(*runs == 1 || replay != Some(Replay::Unsafe), "{call} is unsafe and ran {runs} times");
    }
}
