//! Watcher: a small process that ends the sandboxes of a service that is gone.
//!
//! A sandbox ends itself when nothing has called it for the orphan timeout, but a frozen one cannot run, and what
//! it has mounted stays. So the service starts a watcher outside of every sandbox, one for each run directory, and
//! records heartbeats. After the orphan timeout without one, because the service was stopped, killed or is itself
//! frozen, the watcher removes all sandboxes, unmounts their disks and ends. The files stay. It ends at once when
//! the process of the service ended and left nothing. A service that starts again starts another watcher.

use std::{
    fs::{self, File},
    io,
    os::unix::process::parent_id,
    process::Stdio,
    time::{Instant, SystemTime},
};

use tokio::process::Command;

use super::{Local, config::WatcherProgram, freezer::FreezeLock, in_blocking_thread, unavailable, volume};
use crate::{
    base::limit::WATCH_INTERVAL,
    sandbox::{Fault, Sandbox},
};

impl Local {
    /// Records a heartbeat of the service, and starts its watcher if none runs.
    pub(super) async fn record_heartbeat(&self) -> Result<(), Fault> {
        let (layout, program) = (self.layout.clone(), self.watcher.clone());
        let needs_watcher = in_blocking_thread(move || {
            fs::write(layout.run_dir().join("heartbeat"), "1")?;
            let lock = File::create(layout.run_dir().join("watcher.lock"))?;
            // The lock is free when the file is closed.
            io::Result::Ok(program.filter(|_| lock.try_lock().is_ok()))
        });
        let program =
            needs_watcher.await.map_err(|error| unavailable("its heartbeat cannot be recorded", &error))?;
        program.map_or(Ok(()), |program| self.start_watcher(&program))
    }

    fn start_watcher(&self, program: &WatcherProgram) -> Result<(), Fault> {
        // Its own process group: it outlives a terminal, and a service that is killed with its group.
        let started = Command::new(&program.path)
            .args(&program.args)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        // The runtime reaps it if it ends before this process.
        started.map(drop).map_err(|error| unavailable("the watcher of its sandboxes did not start", &error))
    }

    /// Waits until the service is gone, then removes what its sandboxes left. Returns at once if another watcher
    /// runs. `service_pid` is the process that started this one: it may have ended before this process asks for
    /// its parent.
    pub async fn watch(&self, service_pid: u32) -> Result<(), Fault> {
        let Some(orphan_after) = self.orphan_after else { return Ok(()) };
        let path = self.layout.run_dir().join("watcher.lock");
        let lock = File::create(path).map_err(|error| unavailable("the watcher cannot be locked", &error))?;
        if lock.try_lock().is_err() {
            return Ok(());
        }
        self.engine.outlive_service();
        let interval = WATCH_INTERVAL.min(orphan_after / 4);
        let mut seen = (self.heartbeat_at(), Instant::now());
        // The run directory is removed by who removes all sandboxes.
        while self.layout.run_dir().exists() {
            let heartbeat_at = self.heartbeat_at();
            if heartbeat_at != seen.0 {
                seen = (heartbeat_at, Instant::now());
            }
            // Another process becomes the parent when the service ends.
            if parent_id() != service_pid && self.list().await.is_ok_and(|found| found.is_empty()) {
                return Ok(());
            }
            if seen.1.elapsed() >= orphan_after && matches!(self.remove_all(seen.0).await, Ok(true)) {
                return Ok(());
            }
            tokio::time::sleep(interval).await;
        }
        Ok(())
    }

    /// Removes every sandbox and unmounts the disks. Returns false if the service is back, or something is left.
    async fn remove_all(&self, heartbeat_at: Option<SystemTime>) -> Result<bool, Fault> {
        let mut is_all = true;
        let found = self.list().await?;
        for sandbox in found.iter().filter_map(|found| found.sandbox) {
            // Nobody attaches to it while this holds its gate.
            let gate = FreezeLock::hold(&self.layout.sandbox(sandbox));
            if self.heartbeat_at() != heartbeat_at {
                return Ok(false);
            }
            is_all &= gate.is_ok() && self.destroy(sandbox).await.is_ok();
        }
        for found in &found {
            let disk = self.layout.disk(found.org, found.session);
            // A disk that is locked is in use by a service that is back.
            if let Ok(Some(_held)) = disk.try_lock_disk() {
                is_all &= volume::close(&disk).await.is_ok();
            }
        }
        Ok(is_all)
    }

    /// Time of the last heartbeat of the service.
    fn heartbeat_at(&self) -> Option<SystemTime> {
        fs::metadata(self.layout.run_dir().join("heartbeat")).and_then(|file| file.modified()).ok()
    }
}
