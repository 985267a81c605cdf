//! A deployment of two API and two worker processes on one machine, and its load.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use sojourn::node::local::{Config, Local};
use sojourn::sandbox::Sandbox;
use tokio::task::JoinSet;

use crate::{
    judge::{Counts, Judge, rest},
    load::{Load, Shape},
    postgres,
    process::{Launch, Process, Role, Urls, free_address},
};

/// Directories of a run.
pub struct Ground {
    pub root: PathBuf,
    pub data_dir: PathBuf,
    pub logs: PathBuf,
}

/// Processes under load.
pub struct Deployment {
    /// Workers first.
    pub processes: Vec<Process>,
    pub load: Arc<Load>,
    drivers: JoinSet<()>,
}

/// Everything must be at rest within this time after the last fault: a delivery whose process was killed or cut
/// off is sent again after one minute, one that failed up to 5 minutes later.
const REST: Duration = Duration::from_secs(420);

impl Ground {
    /// Creates the directories of a run.
    pub fn new() -> anyhow::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::Builder::new().prefix("sojourn-failover-").tempdir()?.keep();
        // The user of Postgres needs access.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        let (data_dir, logs) = (root.join("data"), root.join("logs"));
        fs::create_dir(&data_dir)?;
        fs::create_dir(&logs)?;
        Ok(Self { root, data_dir, logs })
    }

    /// A launch on this machine.
    pub fn launch(&self, name: &str, role: Role, binary: &Path, urls: &Urls) -> anyhow::Result<Launch> {
        Ok(Launch {
            name: name.to_owned(),
            role,
            binary: binary.to_owned(),
            listen: free_address()?,
            urls: urls.clone(),
            data_dir: self.data_dir.clone(),
            logs: self.logs.clone(),
            namespace: None,
        })
    }

    /// Log lines of panics.
    pub fn panics(&self) -> anyhow::Result<Vec<String>> {
        let mut panics = Vec::new();
        for log in fs::read_dir(&self.logs)? {
            let text = fs::read_to_string(log?.path()).unwrap_or_default();
            panics.extend(text.lines().filter(|line| line.contains("panicked at")).map(str::to_owned));
        }
        Ok(panics)
    }

    /// Ends the sandboxes of the run and removes its files, except with `keep`.
    pub async fn clear(self, keep: bool) -> anyhow::Result<()> {
        let config = Config::new(&self.data_dir);
        let run_dir = config.run_dir.clone();
        let local = Local::new(config)?;
        for found in local.list().await? {
            if let Some(sandbox) = found.sandbox {
                local.destroy(sandbox).await?;
            }
            local.erase(found.org, found.session).await?;
        }
        let _ = fs::remove_dir_all(run_dir);
        if keep {
            println!("logs and data are in {}", self.root.display());
            return Ok(());
        }
        fs::remove_dir_all(&self.root).with_context(|| format!("{}", self.root.display()))
    }
}

impl Deployment {
    /// Starts processes, one after the other, and a load on them. `hooks` is the address of the receiver.
    pub async fn start(launches: Vec<Launch>, hooks: SocketAddr, shape: Shape) -> anyhow::Result<Self> {
        let addresses: Vec<_> =
            launches.iter().filter(|launch| launch.role == Role::Api).map(|launch| launch.listen).collect();
        let mut processes = Vec::new();
        for launch in launches {
            processes.push(launch.start().await?);
        }
        let load = Load::new(addresses, hooks, shape).await?;
        let drivers = load.start();
        Ok(Self { processes, load, drivers })
    }

    /// Two workers and two API processes of one binary.
    pub fn launches(ground: &Ground, binary: &Path, urls: &Urls) -> anyhow::Result<Vec<Launch>> {
        let names = [
            ("worker-1", Role::Worker),
            ("worker-2", Role::Worker),
            ("api-1", Role::Api),
            ("api-2", Role::Api),
        ];
        names.into_iter().map(|(name, role)| ground.launch(name, role, binary, urls)).collect()
    }

    /// Waits until the load has got `count` more writes accepted.
    pub async fn progress(&self, count: usize) -> anyhow::Result<()> {
        let wanted = self.load.ledger.writes() + count;
        let progress = async {
            while self.load.ledger.writes() < wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), progress).await.context("the load makes no progress")
    }

    /// Ends load and processes and judges the database. `superuser` is its URL.
    pub async fn end(mut self, ground: &Ground, superuser: &str) -> anyhow::Result<(Arc<Load>, Counts)> {
        self.load.stop(self.drivers).await;
        let mut database = postgres::connect(superuser, Duration::from_secs(60)).await?;
        rest(&mut database, REST).await?;
        let ledger = &self.load.ledger;
        for process in &mut self.processes {
            if process.has_ended() {
                ledger.violation(format!("{} ended by itself", process.launch.name));
            }
        }
        for process in self.processes {
            if let Err(error) = process.drain().await {
                ledger.violation(format!("{error:#}"));
            }
        }
        for panic in ground.panics()? {
            ledger.violation(panic);
        }
        let (shape, data_dir) = (self.load.shape, ground.data_dir.as_path());
        let judge = Judge { ledger, shape, data_dir, database: &mut database };
        let counts = judge.judge().await?;
        Ok((self.load.clone(), counts))
    }
}
