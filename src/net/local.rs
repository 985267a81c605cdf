//! Local directories that organizations may use as sources: those that the operator listed.
//!
//! Called by `http` when a source is configured and by `lifecycle` before it is read. The decision uses the
//! path after all links are resolved, not its spelling.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Directories below which repositories may be cloned; none when empty.
#[derive(Clone, Debug, Default)]
pub struct LocalDirectories(Arc<[PathBuf]>);

/// Reason why a path may not be read.
#[derive(Debug, thiserror::Error)]
pub enum NotLocal {
    /// Not below an allowed directory. Also used for a missing path, so that the error does not reveal which
    /// files exist.
    #[error("is not below a directory of SOJOURN_LOCAL_SOURCES")]
    Outside,
}

impl LocalDirectories {
    /// # Errors
    /// A directory cannot be resolved.
    pub fn new(directories: &[impl AsRef<Path>]) -> io::Result<Self> {
        directories.iter().map(std::fs::canonicalize).collect::<io::Result<_>>().map(Self)
    }

    /// Resolves a path.
    ///
    /// # Errors
    /// `Outside` when the result is not allowed or does not exist.
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
