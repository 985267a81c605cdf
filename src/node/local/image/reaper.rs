//! Cleanup of root file systems: work of processes that died, unused trees.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{LocalImages, SIZE};
use crate::{
    base::{
        Origin,
        limit::{ROOTFS_DERIVED_MAX, ROOTFS_MAX_IDLE, ROOTFS_MIN_AGE},
    },
    domain::rootfs::{RootFs, StoredRootFs},
    node::local::{disk::Disk, removal, volume},
    sandbox::BuildError,
};

/// Suffix of a volume's file.
const VOLUME: &str = ".image";

impl LocalImages {
    /// Size and last use of the tree with packages. Returns `None` if it does not exist or was not measured.
    pub(crate) fn stored(&self, rootfs: &RootFs) -> io::Result<Option<StoredRootFs>> {
        let Some(name) = self.whole(rootfs) else { return Ok(None) };
        let size = fs::read_to_string(self.tree(&name).join(SIZE));
        let Some(bytes) = size.ok().and_then(|size| size.parse().ok()) else { return Ok(None) };
        let is_in_use = self.inner.layout.trees_in_use()?.contains(&name);
        let idle = if is_in_use { Duration::ZERO } else { self.idle(&name) };
        Ok(Some(StoredRootFs { bytes, idle_seconds: idle.as_secs() }))
    }

    /// Removes unfinished work without an owner, and trees unused for long; those of `surplus` sooner. Returns the
    /// number of removed entries.
    pub(crate) async fn reap(&self, surplus: &[RootFs]) -> Result<usize, BuildError> {
        let mut removed = 0;
        let left: BTreeSet<String> = names(&self.inner.root.join("work"))?
            .into_iter()
            .chain(names(&self.inner.layout.installs())?)
            .collect();
        for name in left {
            // A process that builds it holds the lock.
            if let Ok(_lock) = self.lock(&name) {
                removed += gone(&name, self.clear(&name).await);
            }
        }
        let surplus = surplus.iter().filter_map(|rootfs| self.whole(rootfs)).collect();
        for name in self.unused(&surplus)? {
            if let Ok(_lock) = self.lock(&name) {
                removed += gone(&name, self.remove(&name).await);
            }
        }
        Ok(removed)
    }

    async fn remove(&self, name: &str) -> Result<(), BuildError> {
        let (tree, work) = (self.tree(name), self.work(name));
        // The rename hides the tree from readers at once; then its files are deleted.
        fs::rename(tree, &work)?;
        tracing::info!(rootfs = name, "an unused root file system is removed");
        removed(&[work]).await
    }

    /// Trees to remove, the longest unused first.
    fn unused(&self, surplus: &BTreeSet<String>) -> Result<Vec<String>, BuildError> {
        let in_use = self.inner.layout.trees_in_use()?;
        let mut trees: Vec<(Duration, String)> = Vec::new();
        let mut derived = 0;
        for name in names(&self.inner.root.join("trees"))? {
            derived += usize::from(name.contains('+'));
            if !in_use.contains(&name) {
                trees.push((self.idle(&name), name));
            }
        }
        trees.sort();
        let mut too_many = derived.saturating_sub(ROOTFS_DERIVED_MAX);
        let mut chosen = Vec::new();
        for (idle, name) in trees.into_iter().rev() {
            let is_derived = name.contains('+');
            let is_surplus = is_derived && (too_many > 0 || surplus.contains(&name));
            if idle >= ROOTFS_MAX_IDLE || is_surplus && idle >= ROOTFS_MIN_AGE {
                too_many = too_many.saturating_sub(usize::from(is_derived));
                chosen.push(name);
            }
        }
        Ok(chosen)
    }

    /// Time since a sandbox was last created on a tree.
    fn idle(&self, name: &str) -> Duration {
        let used = fs::metadata(self.tree(name).join("used")).and_then(|meta| meta.modified());
        let now = SystemTime::from(Origin::system().now());
        used.ok().and_then(|used| now.duration_since(used).ok()).unwrap_or_default()
    }

    /// Removes unfinished work of a name: its container, mount and files. The caller holds the lock.
    pub(super) async fn clear(&self, name: &str) -> Result<(), BuildError> {
        let (place, work) = (self.place(name), self.work(name));
        let failed = |fault: crate::sandbox::Fault| BuildError::Failed(fault.to_string());
        if let Ok(container) = fs::read_to_string(place.join("container"))
            && let Ok(container) = container.parse()
            && let Ok(installer) = &self.inner.installer
        {
            installer.remove(container, &place).await.map_err(failed)?;
        }
        let disk = self.disk(name);
        volume::close(&disk).await.map_err(failed)?;
        removed(&[place, disk.image, work]).await
    }

    /// File system in which packages are installed: its file is in the data directory, its mount where a
    /// sandbox's users have access.
    pub(super) fn disk(&self, name: &str) -> Disk {
        let place = self.place(name);
        Disk {
            image: self.inner.root.join("work").join(format!("{name}{VOLUME}")),
            files: place.join("root"),
            ..Disk::at(place)
        }
    }
}

/// Removes files that an installation wrote as root: a tree of any depth.
async fn removed(paths: &[PathBuf]) -> Result<(), BuildError> {
    removal::disk(None, paths).await.map_err(|fault| BuildError::Failed(fault.to_string()))
}

/// Number of removed entries. One that cannot be removed is left to the next time, and the others are removed.
fn gone(name: &str, removed: Result<(), BuildError>) -> usize {
    match removed {
        Ok(()) => 1,
        Err(error) => {
            tracing::warn!(rootfs = name, %error, "a root file system could not be removed; retried later");
            0
        }
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().into_string().unwrap_or_default();
        names.push(name.strip_suffix(VOLUME).map_or(name.clone(), str::to_owned));
    }
    Ok(names)
}
