//! How the local provider is set up.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{docker, image, layout::Layout};

/// How the local provider is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the sessions' disks are.
    pub data_dir: PathBuf,
    /// Sockets, bundles and the runtime's state; each parent open to all users.
    pub run_dir: PathBuf,
    /// The runtime: a name to look up, or an absolute path.
    pub runtime: String,
    /// A Docker daemon makes the containers instead.
    pub docker: Option<docker::Config>,
    /// A sandbox ends itself when nobody called it for this long; never when `None`.
    pub orphan_after: Option<Duration>,
    /// How the size of a disk is kept.
    pub disks: Disks,
    /// Images and what is installed over them.
    pub images: image::Config,
}

/// How the size of a session's disk is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// By a file system of its own, where this machine can mount one; else as below.
    Volumes,
    /// By looking at a directory every two seconds while something writes to it.
    Directories,
}

impl Config {
    /// `runc`, and `/run/sojourn/<hash of the data directory>`.
    pub fn new(data_dir: &Path) -> Self {
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self {
            run_dir: Layout::default_run_dir(&data_dir),
            data_dir,
            runtime: "runc".to_owned(),
            docker: None,
            orphan_after: None,
            disks: Disks::Volumes,
            images: image::Config::default(),
        }
    }
}
