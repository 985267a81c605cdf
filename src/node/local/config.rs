//! Configuration of the local provider.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use uuid::Uuid;

use super::{docker, image, layout::Layout};
use crate::domain::environment::NodeCapacity;

/// Configuration of the local provider.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the sessions' disks.
    pub data_dir: PathBuf,
    /// Directory of sockets, bundles and the runtime's state; every parent is accessible to all users.
    pub run_dir: PathBuf,
    /// OCI runtime: a program name, or an absolute path.
    pub runtime: String,
    /// Docker daemon that creates the containers instead of an OCI runtime.
    pub docker: Option<docker::Config>,
    /// A sandbox ends itself after this long without a call; never when `None`.
    pub orphan_after: Option<Duration>,
    /// Ends the sandboxes of a service that is gone; none runs when `None`.
    pub watcher: Option<WatcherProgram>,
    /// Enforcement of the disk size.
    pub disks: Disks,
    /// Images and package sources.
    pub images: image::Config,
    /// Identity of the node.
    pub node: Uuid,
    /// Resources of all sandboxes together.
    pub capacity: NodeCapacity,
    /// Free bytes below which no sandbox or image is made.
    pub disk_kept_bytes: u64,
}

/// The program that runs [`Local::watch`](super::Local::watch) with the same configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherProgram {
    pub path: PathBuf,
    pub args: Vec<OsString>,
}

/// Enforcement of the size of a session's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// A file system per disk, where this machine can mount one; otherwise as `Directories`.
    Volumes,
    /// Measures a directory every 2 seconds while something writes to it.
    Directories,
}

impl Config {
    /// Defaults: runtime `runc`, run directory `/run/sojourn/<hash of the data directory>`.
    pub fn new(data_dir: &Path) -> Self {
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self {
            run_dir: Layout::default_run_dir(&data_dir),
            data_dir,
            runtime: "runc".to_owned(),
            docker: None,
            orphan_after: None,
            watcher: None,
            disks: Disks::Volumes,
            images: image::Config::default(),
            node: Uuid::nil(),
            capacity: NodeCapacity::MAX,
            disk_kept_bytes: 0,
        }
    }
}
