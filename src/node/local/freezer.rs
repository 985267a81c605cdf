//! Freezing of sandboxes, fenced by epoch.
//!
//! Called by `local`. Init cannot check the epoch, because it is frozen with its sandbox. So the host stores
//! the highest epoch that has attached in a file outside the sandbox, and a caller that freezes or thaws
//! holds that file's lock. A worker that lost the session without noticing can therefore never freeze a
//! sandbox that another worker uses.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::unavailable;
use crate::{
    base::limit::{FREEZE_TIMEOUT, SANDBOX_START_POLL},
    sandbox::Fault,
};

/// Exclusive right to freeze and thaw one sandbox, until dropped.
pub(super) struct FreezeLock {
    _file: File,
}

impl FreezeLock {
    /// Locks the sandbox's gate file and records the epoch in it.
    ///
    /// # Errors
    /// `Gone` when there is no such sandbox, `Stale` when a higher epoch was recorded.
    pub(super) async fn pass(sandbox_dir: &Path, epoch: i64) -> Result<Self, Fault> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(sandbox_dir.join("gate"));
        let mut file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Fault::Gone),
            Err(error) => return Err(unavailable("its gate file cannot be opened", &error)),
        };
        let until = Instant::now() + 2 * FREEZE_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    tokio::time::sleep(SANDBOX_START_POLL.0).await;
                }
                Err(error) => return Err(unavailable("its gate file cannot be locked", &error.into())),
            }
        }
        let passed =
            pass(&mut file, epoch).map_err(|error| unavailable("its gate file cannot be read", &error))?;
        if passed { Ok(Self { _file: file }) } else { Err(Fault::Stale) }
    }
}

impl FreezeLock {
    /// Locks the sandbox's gate file, whatever its epoch.
    ///
    /// # Errors
    /// `Unavailable` when it is locked or cannot be opened.
    pub(super) fn hold(sandbox_dir: &Path) -> Result<Self, Fault> {
        let file = File::options().write(true).create(true).truncate(false).open(sandbox_dir.join("gate"));
        let file = file.map_err(|error| unavailable("its gate file cannot be opened", &error))?;
        file.try_lock().map_err(|error| unavailable("its gate file is locked", &error.into()))?;
        Ok(Self { _file: file })
    }
}

/// Records the epoch; returns false if a higher one was recorded before.
fn pass(file: &mut File, epoch: i64) -> io::Result<bool> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if text.trim().parse().is_ok_and(|before: i64| before > epoch) {
        return Ok(false);
    }
    file.rewind()?;
    // Fixed width, so that no digits of a longer number remain.
    write!(file, "{epoch:20}")?;
    Ok(true)
}

/// Freezer of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Freezer {
    /// `cgroup.freeze` of v2; frozen processes can be killed.
    Unified(PathBuf),
    /// `freezer.state` of v1; a killed process ends only when it is thawed.
    Legacy(PathBuf),
}

impl Freezer {
    /// Selects the freezer from a sandbox's directories in all hierarchies; the v2 one is preferred if it
    /// contains processes.
    pub(super) fn among(directories: &[PathBuf]) -> Option<Self> {
        let is_populated = |directory: &PathBuf| {
            let events = fs::read_to_string(directory.join("cgroup.events")).unwrap_or_default();
            events.lines().any(|line| line == "populated 1") && directory.join("cgroup.freeze").exists()
        };
        let has_state = |directory: &PathBuf| directory.join("freezer.state").exists();
        let unified = directories.iter().find(|directory| is_populated(directory));
        let legacy = || directories.iter().find(|directory| has_state(directory));
        match unified {
            Some(directory) => Some(Self::Unified(directory.clone())),
            None => legacy().cloned().map(Self::Legacy),
        }
    }

    /// Whether every process is frozen.
    pub(super) fn is_frozen(&self) -> bool {
        match self {
            Self::Unified(directory) => {
                let events = fs::read_to_string(directory.join("cgroup.events")).unwrap_or_default();
                events.lines().any(|line| line == "frozen 1")
            }
            Self::Legacy(directory) => fs::read_to_string(directory.join("freezer.state"))
                .is_ok_and(|state| state.trim() == "FROZEN"),
        }
    }

    /// Freezes or thaws, and waits for completion.
    pub(super) async fn set(&self, freeze: bool) -> Result<(), Fault> {
        let until = Instant::now() + FREEZE_TIMEOUT;
        let mut pause = Duration::from_micros(100);
        self.write(freeze)?;
        while self.is_frozen() != freeze {
            if Instant::now() >= until {
                if freeze {
                    // A partly frozen sandbox would hang its next caller.
                    self.write(false)?;
                }
                return Err(Fault::Unavailable("freezing or thawing timed out".to_owned()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SANDBOX_START_POLL.1);
            if freeze && matches!(self, Self::Legacy(_)) {
                // A v1 freezer can stay in FREEZING; writing the state again makes it retry.
                self.write(true)?;
            }
        }
        Ok(())
    }

    fn write(&self, freeze: bool) -> Result<(), Fault> {
        let written = match self {
            Self::Unified(directory) => {
                fs::write(directory.join("cgroup.freeze"), if freeze { "1" } else { "0" })
            }
            Self::Legacy(directory) => {
                fs::write(directory.join("freezer.state"), if freeze { "FROZEN" } else { "THAWED" })
            }
        };
        written.map_err(|error| unavailable("its cgroup cannot be frozen or thawed", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gate_lets_no_lower_epoch_pass() {
        let directory = tempfile::tempdir().unwrap();
        for epoch in [1, 7, 7, 123] {
            assert!(FreezeLock::pass(directory.path(), epoch).await.is_ok(), "{epoch}");
        }
        assert_eq!(FreezeLock::pass(directory.path(), 99).await.err(), Some(Fault::Stale));
        assert!(FreezeLock::pass(directory.path(), 1_000).await.is_ok());
        assert_eq!(FreezeLock::pass(&directory.path().join("never"), 1).await.err(), Some(Fault::Gone));
    }

    #[test]
    fn the_freezer_that_has_the_processes_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let (v1, v2) = (root.path().join("v1"), root.path().join("v2"));
        fs::create_dir(&v1).unwrap();
        fs::create_dir(&v2).unwrap();
        let both = [v1.clone(), v2.clone()];
        assert_eq!(Freezer::among(&both), None);
        fs::write(v1.join("freezer.state"), "THAWED\n").unwrap();
        fs::write(v2.join("cgroup.freeze"), "0\n").unwrap();
        fs::write(v2.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        assert_eq!(Freezer::among(&both), Some(Freezer::Legacy(v1)));
        fs::write(v2.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        let unified = Freezer::among(&both).unwrap();
        assert_eq!(unified, Freezer::Unified(v2));
        assert!(unified.is_frozen());
    }
}
