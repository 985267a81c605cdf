//! What a test leaves in the sandbox, removed with its ground.
//!
//! A test that fails leaves its sandboxes running; they would outlive its process.

use std::{fs, thread};

use sojourn::sandbox::{
    Sandbox,
    local::{Config, Local},
};
use tokio::runtime;

use super::service::Ground;

impl Ground {
    /// How the sandboxes of this ground's services are made.
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
        // A test's runtime may be the one that runs this: it cannot be blocked on.
        let swept = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(sweep(config));
        });
        assert!(swept.join().is_ok() || thread::panicking(), "the test's sandboxes could not be removed");
    }
}

/// Ends the sandboxes of a data directory and removes their disks.
pub async fn sweep(config: Config) {
    let run_dir = config.run_dir.clone();
    // Where no sandboxes can be made, there are none.
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
