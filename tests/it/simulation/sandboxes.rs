//! Sandboxes as the workers' host has them: they outlive workers, and they die.
//!
//! A sandbox remembers which calls ran in it and refuses an epoch below the highest that
//! it has seen. Here an unsafe call that runs twice, or before it is in the log, is
//! found out.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use sojourn::domain::{SandboxId, tool::Replay};

use super::database::Database;

/// All sandboxes, and every execution that there ever was.
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
    /// When the command of a call ends, or has ended.
    commands: HashMap<String, Duration>,
}

/// Why a sandbox does not do what it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refused {
    Gone,
    Stale,
}

impl Sandboxes {
    pub fn create(&self, id: SandboxId, epoch: i64) {
        self.lock().live.insert(id, Live { epoch, ..Live::default() });
    }

    /// Says hello: from here on lower epochs are refused.
    pub fn attach(&self, id: SandboxId, epoch: i64) -> Result<(), Refused> {
        self.lock().held(id, epoch).map(drop)
    }

    /// Something that is done at once: a file is read or written.
    pub fn touch(&self, id: SandboxId, epoch: i64, call: &str, log: &Database) -> Result<(), Refused> {
        let mut host = self.lock();
        host.held(id, epoch)?;
        host.run(call, log);
        Ok(())
    }

    /// Starts the command of a call, which ends at `ends`; the second start is the first.
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

    /// When the command of a call ends; `None` when there never was one.
    pub fn ends(&self, id: SandboxId, epoch: i64, call: &str) -> Result<Option<Duration>, Refused> {
        Ok(self.lock().held(id, epoch)?.commands.get(call).copied())
    }

    /// Ends the command of a call.
    pub fn kill(&self, id: SandboxId, epoch: i64, call: &str, now: Duration) -> Result<(), Refused> {
        if let Some(ends) = self.lock().held(id, epoch)?.commands.get_mut(call) {
            *ends = now.min(*ends);
        }
        Ok(())
    }

    /// The oldest sandbox dies, with what runs in it.
    pub fn strike(&self) {
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
