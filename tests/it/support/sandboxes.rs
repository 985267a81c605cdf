//! Removal of a test's sandboxes together with its ground.
//!
//! A failed test leaves its sandboxes running; they would outlive its process.

use std::{fs, thread};

use sojourn::node::local::{Config, Local};
use sojourn::sandbox::Sandbox;
use tokio::runtime;

use super::service::Ground;

impl Ground {
    /// Sandbox configuration of this ground's services.
    pub fn sandboxes(&self) -> Config {
        Config::new(&fs::canonicalize(self.data_dir.path()).expect("the directory is there"))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let config = self.sandboxes();
        if !config.data_dir.join("sandboxes").exists() {
            return;
        }
        // `drop` may run on a test's runtime, which must not be blocked.
        let swept = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(sweep(config));
        });
        assert!(swept.join().is_ok() || thread::panicking(), "the test's sandboxes could not be removed");
    }
}

/// Stops the sandboxes of a data directory and removes their disks.
pub async fn sweep(config: Config) {
    let run_dir = config.run_dir.clone();
    // Where sandboxes are not supported, there are none.
    let Ok(local) = Local::new(config) else { return };
    let found = local.list().await.expect("a list");
    for sandbox in found.iter().filter_map(|found| found.sandbox) {
        local.destroy(sandbox).await.expect("a sandbox can be ended");
    }
    for found in &found {
        local.erase(found.org, found.session).await.expect("a disk can be removed");
    }
    fs::remove_dir_all(run_dir).expect("nothing uses it any more");
}
