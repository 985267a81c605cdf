//! Directories of a run: data, logs, and their cleanup.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use anyhow::Context;
use sojourn::node::local::{Config, Local};
use sojourn::sandbox::Sandbox;

use crate::cluster::Cluster;

/// The directories of a run.
pub struct Ground {
    root: PathBuf,
    pub data_dir: PathBuf,
    pub logs: PathBuf,
    cluster: Mutex<Option<Arc<Cluster>>>,
}

impl Ground {
    pub fn new() -> anyhow::Result<Self> {
        let root = tempfile::Builder::new().prefix("sojourn-chaos-").tempdir()?.keep();
        // The operating system user of the database needs access.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        let (data_dir, logs) = (root.join("data"), root.join("logs"));
        fs::create_dir(&data_dir)?;
        fs::create_dir(&logs)?;
        Ok(Self { root, data_dir, logs, cluster: Mutex::default() })
    }

    /// Starts the database of the run.
    pub async fn cluster(&self) -> anyhow::Result<Arc<Cluster>> {
        let cluster = Arc::new(Cluster::start(&self.data_dir).await?);
        *self.cluster.lock().expect("no holder panics") = Some(cluster.clone());
        Ok(cluster)
    }

    /// Log lines of panics.
    pub fn panics(&self) -> anyhow::Result<Vec<String>> {
        let mut panics = Vec::new();
        for log in fs::read_dir(&self.logs)? {
            let path = log?.path();
            let text = fs::read_to_string(&path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let said = text.lines().filter(|line| line.contains("panicked at"));
            panics.extend(said.map(|line| format!("{name}: {line}")));
        }
        Ok(panics)
    }

    /// Stops the remaining processes of the run; its files are kept with `keep`.
    pub async fn clear(self, keep: bool) -> anyhow::Result<()> {
        let ended = end_sandboxes(&self.data_dir).await;
        let cluster = self.cluster.into_inner().expect("no holder panics");
        if let Some(cluster) = cluster {
            cluster.stop().await?;
        }
        ended?;
        if keep {
            println!("logs and data are in {}", self.root.display());
            return Ok(());
        }
        fs::remove_dir_all(&self.root).with_context(|| format!("{}", self.root.display()))
    }
}

async fn end_sandboxes(data_dir: &Path) -> anyhow::Result<()> {
    let config = Config::new(data_dir);
    let run_dir = config.run_dir.clone();
    let local = Local::new(config)?;
    for found in local.list().await? {
        if let Some(sandbox) = found.sandbox {
            local.destroy(sandbox).await?;
        }
        local.erase(found.org, found.session).await?;
    }
    Ok(fs::remove_dir_all(run_dir)?)
}
