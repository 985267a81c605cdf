//! Directories of this machine that organizations may name: those that the operator listed.
//!
//! Called by `http` where a source is named and by `worker` before it is read. What counts
//! is where a path leads when every link in it is followed, not how it is written.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Directories below which repositories may be cloned; none when empty.
#[derive(Clone, Debug, Default)]
pub struct LocalDirectories(Arc<[PathBuf]>);

/// Why a path may not be read.
#[derive(Debug, thiserror::Error)]
pub enum NotLocal {
    /// The operator allows no such directory; also what is not there, so that nobody
    /// learns by this what is on the machine.
    #[error("is not below a directory of SOJOURN_LOCAL_SOURCES")]
    Outside,
}

impl LocalDirectories {
    /// # Errors
    /// When one of them cannot be read now.
    pub fn new(directories: &[impl AsRef<Path>]) -> io::Result<Self> {
        directories.iter().map(std::fs::canonicalize).collect::<io::Result<_>>().map(Self)
    }

    /// Where a path leads.
    ///
    /// # Errors
    /// `Outside` when that is not allowed, or nowhere.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, NotLocal> {
        let resolved = std::fs::canonicalize(path).map_err(|_| NotLocal::Outside)?;
        match self.0.iter().any(|directory| resolved.starts_with(directory)) {
            true => Ok(resolved),
            false => Err(NotLocal::Outside),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_what_leads_below_a_listed_directory_is_read() {
        let ground = tempfile::tempdir().unwrap();
        let at = |name: &str| ground.path().join(name);
        for directory in ["allowed/app", "allowed-not/app", "outside/app"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        symlink(at("outside/app"), at("allowed/link")).unwrap();
        symlink("../allowed/app", at("outside/back")).unwrap();
        symlink(at("allowed"), at("listed")).unwrap();
        let directories = LocalDirectories::new(&[at("listed")]).unwrap();
        let app = fs::canonicalize(at("allowed/app")).unwrap();
        assert_eq!(directories.resolve(&at("allowed/app")).unwrap(), app);
        assert_eq!(directories.resolve(&at("outside/back")).unwrap(), app);
        for outside in [
            "outside/app",
            "allowed/link",
            "allowed-not/app",
            "allowed/../outside/app",
            "allowed/app/../../outside/app",
            "allowed/nothing",
        ] {
            assert!(directories.resolve(&at(outside)).is_err(), "{outside}");
        }
        assert!(LocalDirectories::default().resolve(&at("allowed/app")).is_err());
        assert!(LocalDirectories::new(&[at("nothing")]).is_err());
    }
}
